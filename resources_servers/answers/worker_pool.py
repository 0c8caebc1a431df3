"""Runs comparisons, which may never finish, in a pool of processes. Time spent waiting for a free process is not
limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass

import orjson

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import Failure, FailureKind
from rollyard.resources_servers.answers.equality import Comparison

WALL_S = 120.0
"""Wall-clock limit of a comparison, in case the host is too overloaded for it to use up its CPU time."""
MIN_CPU_S = 0.01
"""No comparison is started with less CPU time than this."""
MAX_GOLDS = 10_000
"""Maximum number of gold answers for which the pool remembers whether they can be parsed."""
_EXITED: dict[str, object] = {"external": True, "failed": "the process exited"}
_EXTERNAL_SIGNALS = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


@dataclass
class Budget:
    """The CPU time that is left for the comparisons of one verdict."""

    left_s: float


class WorkerPool:
    """Compares answers in at most `count` worker processes (0: one per CPU), which are started on demand."""

    def __init__(self, count: int, cpu_s: float) -> None:
        self._cpu_s = cpu_s
        self._parsable: dict[str, bool] = {}
        # The most recently used process is reused first, so that no more processes are started than necessary.
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()
        self._all = [_Worker() for _ in range(count or len(os.sched_getaffinity(0)))]
        for worker in reversed(self._all):
            self._idle.put_nowait(worker)

    def budget(self) -> Budget:
        return Budget(self._cpu_s)

    async def compare(self, gold: str, answer: str, problem: str = "", budget: Budget | None = None) -> Comparison:
        """Return the result of `compare_symbolically`. An answer that is too expensive to compare, or crashes the
        worker, is wrong. The time is taken from `budget`.

        Raises Failure if the answer is not to blame: timeout if the gold answer alone takes too long, server_error if
        the worker process failed.
        """
        budget = budget or self.budget()
        if budget.left_s < MIN_CPU_S:
            return Comparison(equal=False, reason=self._reason({"died": signal.SIGPROF}))
        result = await self._request(gold, answer, problem, budget.left_s)
        spent = result.pop("cpu_s", budget.left_s)
        budget.left_s -= spent if isinstance(spent, float) else budget.left_s
        if "equal" in result:
            return Comparison.model_validate(result)
        reason = self._reason(result)
        # If an expensive answer were a failure, a policy could get a second attempt for its wrong answers.
        if not _is_external(result) and await self._can_parse(gold):
            return Comparison(equal=False, reason=reason)
        kind = FailureKind.TIMEOUT if result.get("died") == signal.SIGPROF else FailureKind.SERVER_ERROR
        shown = answer if len(answer) <= 80 else f"{answer[:80]}..."
        raise Failure(kind, f"the answer {shown!r} could not be verified: {reason}")

    async def _can_parse(self, gold: str) -> bool:
        if gold not in self._parsable:
            result = await self._request(gold, None, "", self._cpu_s / 2)
            if _is_external(result):
                return False
            if len(self._parsable) >= MAX_GOLDS:
                self._parsable.clear()
            self._parsable[gold] = "equal" in result
        return self._parsable[gold]

    async def _request(self, gold: str, answer: str | None, problem: str, cpu_s: float) -> dict[str, object]:
        worker = await self._idle.get()
        try:
            return await worker.request({"gold": gold, "answer": answer, "problem": problem, "cpu_s": cpu_s})
        finally:
            self._idle.put_nowait(worker)

    def _reason(self, result: dict[str, object]) -> str:
        if result.get("died") == signal.SIGPROF:
            return f"comparing takes more than {self._cpu_s:g} s of CPU time (setting verify_cpu_s)"
        return str(result.get("failed") or f"the process was killed by signal {result.get('died')}")

    async def close(self) -> None:
        for worker in self._all:
            await worker.stop()


class _Worker:
    """A worker process, which starts with its first comparison."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._busy = False

    async def request(self, comparison: dict[str, object]) -> dict[str, object]:
        self._busy = True
        try:
            process = self._process = self._process or await _started()
            assert process.stdin and process.stdout
            process.stdin.write(orjson.dumps(comparison) + b"\n")
            async with asyncio.timeout(WALL_S):
                line = await process.stdout.readline()
            self._busy = not line
            result: dict[str, object] = orjson.loads(line) if line else _EXITED
        except TimeoutError:
            result = {"external": True, "failed": f"no result within {WALL_S:g} s"}
        except ConnectionError:
            result = _EXITED
        finally:
            if self._busy:  # a late response would be mistaken for the response to the next request
                await asyncio.shield(self.stop())
                self._busy = False
        return result

    async def stop(self) -> None:
        """Stop the process: close its standard input if it is idle, and kill it if it is busy."""
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
        "-P",  # modules are not imported from the working directory
        "-m",
        "rollyard.resources_servers.answers.comparison_worker",
        cwd=INSTALLED,
        # Set order depends on hash values, and determines what sympy tries first.
        env={"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


def _is_external(result: dict[str, object]) -> bool:
    """Return whether the comparison was ended by something other than the formulas, such as a signal from outside."""
    return bool(result.get("external")) or result.get("died") in _EXTERNAL_SIGNALS
