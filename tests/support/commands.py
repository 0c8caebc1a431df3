"""The commands as a user runs them: real processes, real files."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from rollyard.services.io.search_path import INSTALLED

BIN = Path(sys.executable).parent
DEADLINE_S = 300.0
"""Only stops tests that hang; long enough for a busy machine."""


@dataclass
class Finished:
    """A finished command."""

    status: int
    out: str
    err: str


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
        """Its output so far."""
        return self.log.read_text()


@contextlib.asynccontextmanager
async def ng_run(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    name: str = "ng_run",
    ready_s: float = DEADLINE_S,
) -> AsyncIterator[Running]:
    """`ng_run` with all servers ready, within `ready_s`; ended with SIGINT."""
    log = cwd / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(BIN / "ng_run"), *arguments, cwd=cwd, env=command_environ(env), stdout=output, stderr=output
        )
    running = Running(process, cwd, log)
    try:
        async with asyncio.timeout(ready_s):
            while "servers ready!" not in running.printed:
                assert process.returncode is None, running.printed
                await asyncio.sleep(0.02)
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), DEADLINE_S)


@contextlib.asynccontextmanager
async def ng_viewer(*arguments: str, cwd: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`ng_viewer` and the address that it printed; ended with SIGINT."""
    process = await asyncio.create_subprocess_exec(
        str(BIN / "ng_viewer"), *arguments, cwd=cwd, env=command_environ(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)
        yield process, line.decode().strip()
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), DEADLINE_S)


def in_this_process(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Finished:
    """Run a command's `main` in this process, which saves a second of imports. The caller sets folder and variables."""
    main = importlib.import_module(f"rollyard.services.cli.{arguments[0].removeprefix('ng_')}").main
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as exited:
        patch.setattr(sys, "argv", list(arguments))
        main()
    printed = capsys.readouterr()
    return Finished(int(exited.value.code or 0), printed.out, printed.err)


def config(*paths: str) -> str:
    """`+config_paths=[...]` with paths from the repository."""
    assert all((INSTALLED / path).is_file() for path in paths)
    return f"+config_paths=[{','.join(paths)}]"
