"""A pool of processes for comparisons that may take for ever. Waiting for a free one counts against no limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys

import orjson

from rollyard.resources_servers.answers.equality import Comparison
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.io.search_path import INSTALLED

WALL_S = 120.0
"""A comparison that used up neither its CPU time nor this is at work on a machine that has no time for it."""
MOST_GOLDS = 10_000
"""Gold answers of which is remembered whether they can be read."""
_FROM_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


class WorkerPool:
    """Compares answers in processes of their own, started when needed; at most `count` at once."""

    def __init__(self, count: int, cpu_s: float) -> None:
        self._cpu_s = cpu_s
        self._readable: dict[str, bool] = {}
        # The last one used is the first one taken: the others need not be started.
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._all = [_Worker() for _ in range(count or len(os.sched_getaffinity(0)))]
        for worker in reversed(self._all):
            self._idle.put_nowait(worker)

    async def compare(self, gold: str, answer: str, problem: str = "") -> Comparison:
        """What `thorough` says; not equal for an answer that costs too much or breaks the comparison.

        Raises Failure when that is not the answer's fault: timeout when the gold answer alone takes too long,
        server_error when its process could not work.
        """
        said = await self._ask(gold, answer, problem, self._cpu_s)
        if "equal" in said:
            return Comparison.model_validate(said)
        reason = self._reason(said)
        # A policy could have its mistakes sampled again if a bomb for an answer were a failure.
        if not _is_outside(said) and await self._reads(gold):
            return Comparison(equal=False, reason=reason)
        kind = FailureKind.TIMEOUT if said.get("died") == signal.SIGPROF else FailureKind.SERVER_ERROR
        raise Failure(kind, f"the answer could not be verified: {reason}: {_shown(answer)}")

    async def _reads(self, gold: str) -> bool:
        """True for a gold answer that is read in half of the CPU time."""
        if gold not in self._readable:
            said = await self._ask(gold, None, "", self._cpu_s / 2)
            if _is_outside(said):
                return False
            if len(self._readable) >= MOST_GOLDS:
                self._readable.clear()
            self._readable[gold] = "equal" in said
        return self._readable[gold]

    async def _ask(self, gold: str, answer: str | None, problem: str, cpu_s: float) -> dict[str, object]:
        worker = await self._idle.get()
        try:
            return await worker.ask({"gold": gold, "answer": answer, "problem": problem, "cpu_s": cpu_s})
        finally:
            self._idle.put_nowait(worker)

    def _reason(self, said: dict[str, object]) -> str:
        if said.get("died") == signal.SIGPROF:
            return f"comparing took more than {self._cpu_s:g} s of CPU time (setting verify_cpu_s)"
        return str(said.get("failed") or f"the process ended with signal {said.get('died')}")

    async def close(self) -> None:
        """End every process."""
        for worker in self._all:
            await worker.stop()


class _Worker:
    """One process, or the right to one."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._busy = False

    async def ask(self, question: dict[str, object]) -> dict[str, object]:
        self._busy = True
        try:
            process = self._process = self._process or await _started()
            assert process.stdin and process.stdout
            process.stdin.write(orjson.dumps(question) + b"\n")
            async with asyncio.timeout(WALL_S):
                line = await process.stdout.readline()
            self._busy = not line
            said: dict[str, object] = orjson.loads(line) if line else {"outside": True, "failed": "its process ended"}
        except TimeoutError:
            said = {"outside": True, "failed": f"no answer within {WALL_S:g} s"}
        except ConnectionError:
            said = {"outside": True, "failed": "its process ended"}
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
        "-P",  # the working directory's folders are not modules
        "-m",
        "rollyard.resources_servers.answers.comparison_worker",
        cwd=INSTALLED,
        # Sets print in the order of their hashes, and what is tried first depends on it.
        env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


def _is_outside(said: dict[str, object]) -> bool:
    """True when something else than the compared formulas ended the comparison, such as a signal from outside."""
    return bool(said.get("outside")) or said.get("died") in _FROM_OUTSIDE


def _shown(answer: str) -> str:
    return repr(answer if len(answer) <= 80 else f"{answer[:80]}...")
