"""ng_viewer and ng_run as processes, for tests without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.support.commands import BIN, command_environ, config, ng_run
from tests.support.preloaded import Preloaded
from tests.support.stacks import SOKOBAN
from tests.support.waiting import deadline_s, eventually

_VIEWER = Preloaded("ng_viewer")
Started = Callable[..., str]
"""The fixtures `viewer` and `module_viewer`: start a viewer of some files and return its address."""


@contextlib.contextmanager
def viewing(paths: Sequence[Path], cwd: Path, *more: str) -> Iterator[str]:
    """The URL of a viewer with these files; ended with SIGINT."""
    with tempfile.TemporaryFile() as output:
        process = _VIEWER.start([_files(paths), "+port=0", *more], cwd=cwd, env=command_environ(), stdout=output)
        try:
            yield eventually("the address", lambda: _first_line(output.fileno()))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0


@contextlib.contextmanager
def installed_viewer(path: Path) -> Iterator[str]:
    """The URL of a viewer of a file, started like from a shell: by the installed program."""
    with tempfile.TemporaryFile() as output:
        command = [str(BIN / "ng_viewer"), str(path), "+port=0"]
        process = subprocess.Popen(command, cwd=path.parent, env=command_environ(), stdout=output)
        try:
            yield eventually("the address", lambda: _first_line(output.fileno()))
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(deadline_s()) == 0


def _first_line(descriptor: int) -> str:
    """The first line of a file that a process writes; empty if it is not complete."""
    line, end, _ = os.pread(descriptor, 1000, 0).decode().partition("\n")
    return line if end else ""


def _files(paths: Sequence[Path]) -> str:
    return f"+jsonl_fpath=[{','.join(map(str, paths))}]"


def exported(paths: Sequence[Path], out: Path, *more: str) -> Path:
    """Export these files as one HTML file."""
    done = _VIEWER.run([_files(paths), f"+export={out}", *more], cwd=out.parent, env=command_environ())
    assert done.returncode == 0, done.stderr
    return out


@contextlib.contextmanager
def running_stack(cwd: Path, *overrides: str) -> Iterator[None]:
    """A run of Sokoban, started in `cwd`."""
    ready, done = threading.Event(), threading.Event()

    async def run() -> None:
        async with ng_run(config(SOKOBAN), "+colocate=true", *overrides, cwd=cwd):
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(deadline_s())
        yield
    finally:
        done.set()
        thread.join()
