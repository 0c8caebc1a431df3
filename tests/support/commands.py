"""The commands as a user starts them: real processes, real files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollyard.services.io.search_path import INSTALLED

BIN = Path(sys.executable).parent
DEADLINE_S = 300.0
"""For what hangs; a machine that is busy takes its time."""


@dataclass
class Finished:
    """A command that has ended."""

    status: int
    out: str
    err: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """A user's environment without what a test run may have set."""
    kept = {key: value for key, value in os.environ.items() if not key.lower().startswith(("policy_", "rollyard"))}
    return {**kept, "PATH": f"{BIN}{os.pathsep}{kept.get('PATH', '')}", **(extra or {})}


async def command(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
) -> Finished:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        str(BIN / arguments[0]),
        *arguments[1:],
        cwd=cwd,
        env=environment(env),
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
    """An `ng_run` in the foreground of some terminal."""

    process: asyncio.subprocess.Process
    cwd: Path
    log: Path

    @property
    def printed(self) -> str:
        """What it has said so far."""
        return self.log.read_text()


@contextlib.asynccontextmanager
async def ng_run(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None, name: str = "ng_run"
) -> AsyncIterator[Running]:
    """`ng_run`, ready; interrupted at the end as by Ctrl-C."""
    log = cwd / f"{name}.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(BIN / "ng_run"), *arguments, cwd=cwd, env=environment(env), stdout=output, stderr=output
        )
    running = Running(process, cwd, log)
    try:
        async with asyncio.timeout(DEADLINE_S):
            while "servers ready!" not in running.printed:
                assert process.returncode is None, running.printed
                await asyncio.sleep(0.05)
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), DEADLINE_S)


def config(*paths: str) -> str:
    """`+config_paths=[...]` with paths of the repository."""
    assert all((INSTALLED / path).is_file() for path in paths)
    return f"+config_paths=[{','.join(paths)}]"
