"""ng_viewer and ng_run as processes, for tests without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.commands import BIN, command_environ, config, ng_run
from tests.support.stacks import SOKOBAN

DEADLINE_S = 300.0
"""Only stops tests that hang; long enough for a busy machine."""


@contextlib.contextmanager
def viewing(paths: Sequence[Path], cwd: Path, *more: str) -> Iterator[str]:
    """The URL of a viewer with these files; ended with SIGINT."""
    files = f"+jsonl_fpath=[{','.join(map(str, paths))}]"
    process = subprocess.Popen(
        [BIN / "ng_viewer", files, "+port=0", *more], cwd=cwd, env=command_environ(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    reader = threading.Thread(target=lambda: lines.put(process.stdout.readline()))  # type: ignore[union-attr]
    reader.start()
    try:
        yield lines.get(timeout=DEADLINE_S).strip()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        reader.join()
        process.stdout.close()


def exported(paths: Sequence[Path], out: Path, *more: str) -> Path:
    """Export these files as one HTML file."""
    files = f"+jsonl_fpath=[{','.join(map(str, paths))}]"
    subprocess.run(
        [BIN / "ng_viewer", files, f"+export={out}", *more],
        cwd=out.parent,
        env=command_environ(),
        check=True,
        timeout=DEADLINE_S,
        stdout=subprocess.DEVNULL,
    )
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
        assert ready.wait(DEADLINE_S)
        yield
    finally:
        done.set()
        thread.join()
