"""Processes forked from one that has already imported the stack, which takes a new interpreter a second of CPU. These
are real processes that run the same `serve` and the same commands.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollyard.services.runtime.process_setup import die_with_parent, raise_file_limit

FORKS = multiprocessing.get_context("forkserver")


class Forked:
    """Satisfies `rollyard.services.runtime.launcher.Process`."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        self._process = FORKS.Process(target=target, args=arguments, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._end)

    @property
    def returncode(self) -> int | None:
        """Exit status; negative for a signal."""
        return self._process.exitcode if self._ended.done() else None

    async def wait(self) -> int:
        await asyncio.shield(self._ended)
        assert self._process.exitcode is not None
        return self._process.exitcode

    async def ended_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self._ended], timeout=seconds)
        return bool(done)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self._ended.set_result(None)


def forked_command(
    main: Callable[[], object],
    arguments: Sequence[str],
    log: Path,
    here: Path,
    environ: Mapping[str, str] | None = None,
    name: str = "command",
) -> Forked:
    """Run the `main` of a command in the folder `here`, with these environment variables."""
    return Forked(_command, main, [name, *arguments], str(log), str(here), environ and dict(environ))


def _command(
    main: Callable[[], object], arguments: list[str], log: str, here: str, environ: dict[str, str] | None
) -> None:
    os.chdir(here)
    if environ is not None:
        os.environ.clear()
        os.environ.update(environ)
    become(log)
    sys.argv = arguments
    main()


def become(log: str) -> None:
    """Make this process one that was started on its own, with its output in `log`."""
    os.setsid()
    die_with_parent(os.getppid())
    raise_file_limit()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
