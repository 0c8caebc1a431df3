"""A pool of processes for comparisons that may take for ever. Waiting for a free one counts against no limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import orjson

from resources_servers.answers.equality import Comparison
from services.errors import Failure, FailureKind
from services.roots import INSTALLED

WALL_S = 120.0
"""A comparison that used up neither its CPU time nor this is at work on a machine that has no time for it."""


class Workers:
    """Compares answers in processes of their own, started when needed; at most `count` at once."""

    def __init__(self, count: int, cpu_s: float) -> None:
        self._cpu_s = cpu_s
        # The last one used is the first one taken: the others need not be started.
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._all = [_Worker() for _ in range(count or len(os.sched_getaffinity(0)))]
        for worker in reversed(self._all):
            self._idle.put_nowait(worker)

    async def compare(self, gold: str, answer: str) -> Comparison:
        """What `thorough` says. Raises Failure timeout when it takes too long, server_error when it cannot say."""
        worker = await self._idle.get()
        try:
            said = await worker.ask(gold, answer, self._cpu_s)
        finally:
            self._idle.put_nowait(worker)
        if "equal" in said:
            return Comparison.model_validate(said)
        if said.get("died") == signal.SIGPROF:
            detail = f"comparing took more than {self._cpu_s:g} s of CPU time (setting verify_cpu_s)"
            raise Failure(FailureKind.TIMEOUT, f"the answer could not be verified: {detail}: {_shown(answer)}")
        reason = said.get("failed") or f"the process ended with signal {said.get('died')}"
        raise Failure(FailureKind.SERVER_ERROR, f"the answer could not be verified: {reason}: {_shown(answer)}")

    async def close(self) -> None:
        """End every process."""
        for worker in self._all:
            await worker.stop()


class _Worker:
    """One process, or the right to one."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._busy = False

    async def ask(self, gold: str, answer: str, cpu_s: float) -> dict[str, object]:
        self._busy = True
        try:
            process = self._process = self._process or await _started()
            assert process.stdin and process.stdout
            process.stdin.write(orjson.dumps([gold, answer, cpu_s]) + b"\n")
            async with asyncio.timeout(WALL_S):
                line = await process.stdout.readline()
            self._busy = not line
            said: dict[str, object] = orjson.loads(line) if line else {"failed": "its process ended"}
        except TimeoutError:
            said = {"failed": f"no answer within {WALL_S:g} s"}
        except ConnectionError:
            said = {"failed": "its process ended"}
        finally:
            if self._busy:  # a late answer would be taken for the next one's
                await asyncio.shield(self.stop())
                self._busy = False
        return said

    async def stop(self) -> None:
        """End the process: an idle one by the end of its input, one at work by force."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin
        process.stdin.close()
        try:
            async with asyncio.timeout(0.0 if self._busy else 1.0):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _started() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "resources_servers.answers.worker",
        cwd=INSTALLED,
        # Sets print in the order of their hashes, and what is tried first depends on it.
        env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


def _shown(answer: str) -> str:
    return repr(answer if len(answer) <= 80 else f"{answer[:80]}...")
