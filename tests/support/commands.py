"""The commands as a user runs them: in processes, or in this one where the process is not what is tested."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rollyard
from rollyard.cli.options import Options
from rollyard.records.data_files import INSTALLED
from rollyard.services.runtime.running_stack import RunningStack
from tests.support.background_loop import background_loop
from tests.support.waiting import deadline_s, until

BIN = Path(sys.executable).parent
DEADLINE_S = deadline_s()
"""Only stops tests that hang; long enough for a busy machine."""


@dataclass
class Finished:
    status: int
    out: str
    err: str


Command = Callable[..., Finished]
"""`in_this_process` with the test's `capsys`."""


def command_environ(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables of a user, without those that a test run may have set."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().startswith(("policy_", "rollyard"))}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}", **(extra or {})}


async def command(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
) -> Finished:
    """Run a command and wait until it exits."""
    process = await asyncio.create_subprocess_exec(
        str(BIN / arguments[0]),
        *arguments[1:],
        cwd=cwd,
        env=command_environ(env),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), deadline_s)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return Finished(process.returncode, out.decode(), err.decode())


@dataclass
class Running:
    """A running `ng_run`."""

    process: asyncio.subprocess.Process
    cwd: Path
    log: Path

    @property
    def printed(self) -> str:
        return self.log.read_text()


@contextlib.asynccontextmanager
async def ng_run(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, name: str = "ng_run", ready_s: float = DEADLINE_S
) -> AsyncIterator[Running]:
    """`ng_run` with all servers ready, within `ready_s`; ended with SIGINT."""
    log = cwd / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(BIN / "ng_run"), *arguments, cwd=cwd, env=command_environ(env), stdout=output, stderr=output
        )
    running = Running(process, cwd, log)
    try:
        await until(lambda: "servers ready!" in running.printed or process.returncode is not None, limit_s=ready_s)
        assert process.returncode is None, running.printed
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), DEADLINE_S)


@contextlib.asynccontextmanager
async def announced(
    *arguments: str, cwd: Path, end: signal.Signals = signal.SIGINT
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A running command that first prints where it listens, and that line; ended with the signal `end`."""
    process = await asyncio.create_subprocess_exec(
        str(BIN / arguments[0]), *arguments[1:], cwd=cwd, env=command_environ(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.send_signal(end)
        await asyncio.wait_for(process.communicate(), DEADLINE_S)


def in_this_process(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Finished:
    """Run a command's `main` in this process, which saves a second of imports. The caller sets folder and variables."""
    main = importlib.import_module(f"rollyard.cli.{arguments[0].removeprefix('ng_')}").main
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exited:
        patch.setattr(sys, "argv", list(arguments))
        main()
    printed = capsys.readouterr()
    return Finished(int(exited.value.code or 0), printed.out, printed.err)


def options_of(module: str) -> type[Options]:
    """The options of a module of cli/, such as `doctor_tokens`."""
    found = vars(importlib.import_module(f"rollyard.cli.{module}"))
    models = (one for one in found.values() if isinstance(one, type) and issubclass(one, Options))
    (model,) = (one for one in models if one.__module__ == found["__name__"])
    return model


async def in_thread(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Finished:
    """`in_this_process` while the event loop of the test goes on. The command may handle no signals."""
    return await asyncio.to_thread(in_this_process, *arguments, capsys=capsys)


@contextlib.contextmanager
def running_stack(
    *overrides: str, configs: str | Mapping[str, Any] | Sequence[str], folder: Path, token: str | None = None
) -> Iterator[RunningStack]:
    """The servers of `ng_run` in a thread of this process; commands that run in `folder` find them."""
    with background_loop() as run:
        stack = rollyard.stack(configs, *overrides, colocate=True, folder=folder, token=token)
        run(stack.start())
        try:
            yield stack
        finally:
            run(stack.stop())


def config(*paths: str) -> str:
    """`+config_paths=[...]` with paths from the repository."""
    assert all((INSTALLED / path).is_file() for path in paths)
    return f"+config_paths=[{','.join(paths)}]"
