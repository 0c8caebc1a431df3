"""Program: a command in its own process group, with its output in a log file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import open_private
from rollyard.records.process_group import guarded
from rollyard.records.run_types import HeadFile
from rollyard.records.script import EXIT_USAGE
from rollyard.records.terminal import plain
from rollyard.services.runtime.run_dir import running_heads

TAIL_BYTES = 64 * 1024
STOP_S = 15.0
"""How long a program may take to stop after SIGTERM before its processes are killed."""
TAIL_LINES = 12
_ERROR = re.compile(r"\b\w*(?:Error|Exception): \S")
_DERIVED = re.compile(r"[Ss]ee (?:root cause|stack trace)|initialization failed|EngineDeadError")
POLL_S = 0.05
_RUN = re.compile(r"^run (\S+): \d+ servers, head (\S+)$", re.MULTILINE)
_READY = "servers ready!"


class ServerProgram:
    """A program that dies with this process, whatever ends it, including everything that the program has started."""

    def __init__(self, process: asyncio.subprocess.Process, name: str, log: Path, offset: int) -> None:
        self.name = name
        self.pid = process.pid
        """Process id of the guard, whose only child is the program."""
        self.log = log
        self.started = time.time()
        self.ended: asyncio.Task[int] = asyncio.create_task(self._wait(process))
        """Done when the program and all its descendants have exited; the result is the exit status."""
        self._process = process
        self._offset = offset

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        log: Path,
        environ: Mapping[str, str],
        cwd: Path,
        title: str,
        temporary: Path | None = None,
    ) -> Self:
        """Run `command` and append its output to `log`, after the line `title`. `temporary`: see `guarded`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with open_private(log) as output:
            output.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} {title}\n".encode())
            output.flush()
            offset = output.tell()
            process = await asyncio.create_subprocess_exec(
                *guarded(command, temporary),
                cwd=cwd,
                env={"PYTHONUNBUFFERED": "1", **environ},
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which stops its programs in order
            )
        return cls(process, name, log, offset)

    @property
    def running(self) -> bool:
        return not self.ended.done()

    def send(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> int:
        """Return the exit status once the program and all its descendants have exited."""
        return await asyncio.shield(self.ended)

    def terminate(self) -> None:
        self.send(signal.SIGTERM)

    async def stop(self, grace_s: float = STOP_S) -> None:
        """Stop the program with SIGTERM, or kill it if it takes longer than `grace_s`. Waits for its last process."""
        self.send(signal.SIGTERM)
        await asyncio.wait({self.ended}, timeout=grace_s)
        if self.running:
            self.kill()
            await self.ended

    def kill(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def printed(self) -> str:
        """The program's output, without that of earlier attempts; only its end if it is long."""
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self._offset, end - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")

    async def _wait(self, process: asyncio.subprocess.Process) -> int:
        status = await process.wait()
        # If the leader was killed, the others of its group are still running.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        process.stdin.close()
        return status


def ended_badly(program: ServerProgram) -> str:
    """Describe how a program ended, with the last lines of its log."""
    status = program.ended.result()
    return f"{program.name} {ending(status)}\n{tail(program)}"


def raise_for(program: ServerProgram) -> None:
    """Raise the error of a program that has ended: OperatorError if a retry would fail again, else RunError."""
    if program.ended.result() == EXIT_USAGE:
        raise OperatorError(ended_badly(program))
    raise RunError(ended_badly(program))


def tail(program: ServerProgram) -> str:
    lines = [line.rstrip() for line in program.printed().replace("\r", "\n").splitlines() if line.strip()]
    last, earlier = lines[-TAIL_LINES:], lines[:-TAIL_LINES]
    # vLLM's engine reports the cause, and its API server then prints many lines that refer to it.
    cause = [line for line in earlier if _ERROR.search(line) and not _DERIVED.search(line)][-1:]
    shown = "".join(f"  | {plain(line)[:300]}\n" for line in [*cause, *(["..."] if cause else []), *last])
    return f"{shown}  log: {program.log}"


def ending(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    return f"was killed by signal {status - 128}" if status > 128 + 1 else f"exited with status {status}"


async def until_ready(
    program: ServerProgram, here: Path, show: Callable[[str], None] = lambda printed: None
) -> HeadFile:
    """Wait until all servers of an `ng_run` in the folder `here` are ready; return its head. `show` gets the output."""
    while _READY not in (printed := program.printed()):
        show(printed)
        await asyncio.wait({program.ended}, timeout=POLL_S)
        if not program.running:
            raise_for(program)
    show(printed)
    found = _RUN.search(printed)
    run_id, url = (found[1], found[2]) if found else ("", "")
    heads = [head for head in running_heads(here) if head.run_id == run_id]
    return heads[0] if heads else HeadFile(run_id=run_id, url=url, pid=0)
