"""Collectors: several processes that collect one output, each its shard, as one collector would.

Each writes the files of its shard (shards.py) and decides about its own rollouts. What concerns all of them is decided
here: whether too many rollouts have failed, what becomes of a collector that was killed, and when to stop.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from rollyard.records.errors import RunError
from rollyard.records.locked_files import is_locked
from rollyard.records.rollout_file import read_status
from rollyard.records.rollout_keys import Shard
from rollyard.records.script import EXIT_DONE, EXIT_INTERRUPTED
from rollyard.records.types import CollectionStatus, FailureRow, State
from rollyard.services.rollouts.collector import too_many_failures
from rollyard.services.rollouts.progress import summed

POLL_S = 0.25
_SIGNALLED = 128
MAX_DEATHS = 3
"""A collector that was killed so often, without storing a rollout in between, is not started again."""


class CollectorProcess(Protocol):
    """A process that collects a shard. SIGUSR1 drains it, and SIGTERM cancels it."""

    def send(self, number: signal.Signals) -> None: ...

    async def wait(self) -> int:
        """Return the exit status: -N, or 128 + N, if signal N has ended it."""
        ...


StartCollector = Callable[[Shard, Callable[[bytes], None]], Awaitable[CollectorProcess]]
"""Starts the collector of a shard; the function receives what it prints."""


class Collectors:
    """Starts the collectors, watches them and sums their states. Has the methods of `Collector` that its users need."""

    def __init__(
        self,
        output: Path,
        count: int,
        start: StartCollector,
        before: CollectionStatus,
        max_failure_rate: float,
        *,
        print_line: Callable[[str], None],
        write_status: Callable[[CollectionStatus], None],
    ) -> None:
        """`before`: the status of the whole output before they start."""
        self._output = output
        self._shards = [Shard(number, count) for number in range(1, count + 1)]
        self._start = start
        self._before = before
        self._max_failure_rate = max_failure_rate
        self._print_line = print_line
        self._write_status = write_status
        self._processes: dict[Shard, CollectorProcess] = {}
        self._statuses: dict[Shard, CollectionStatus] = {}
        self._failures: dict[tuple[Shard, float], Counter[str]] = {}
        """Failed attempts by kind of each process, also of those that were killed; a process is named by its start."""
        self._printed: set[str] = set()
        self._draining = self._cancelled = False
        self._interrupted = False
        """Somebody has interrupted one of the collectors alone."""
        self.stopped_because = ""
        self.status = before
        self.failures: deque[FailureRow] = deque()
        """Empty: each collector reports its own to the head."""

    async def run(self) -> State:
        """Collect until every collector has ended. Their files are then still to be merged."""
        tasks = {asyncio.create_task(self._collect(shard)) for shard in self._shards}
        while True:
            _, running = await asyncio.wait(tasks, timeout=POLL_S)
            self._update()
            if not running:
                break
        for task in tasks:
            task.result()
        if self.stopped_because:
            return "stopped"
        return "interrupted" if self._draining or self._interrupted else "incomplete"

    def drain(self) -> None:
        if not self._draining:  # a second SIGUSR1 would abandon the episodes in flight
            self._draining = True
            self._send(signal.SIGUSR1)

    def cancel(self) -> None:
        """Stop immediately. Episodes in flight are abandoned and will be run again on resume."""
        self._draining = self._cancelled = True
        self._send(signal.SIGTERM)

    def stop(self, why: str) -> None:
        """Stop immediately because the collection cannot continue. `why`: the reason, for the user."""
        self.stopped_because = self.stopped_because or why
        self.cancel()

    def _stop(self, why: str) -> None:
        self.stopped_because = self.stopped_because or why
        self.drain()

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            process.send(number)

    async def _collect(self, shard: Shard) -> None:
        """Run the collector of a shard to its end. If it is killed, another one continues with its files."""
        path, deaths, measured = shard.output(self._output), 0, -1
        while not self._draining:
            output = _LineSplitter(self._relay)
            try:
                process = self._processes[shard] = await self._start(shard, output.write)
            except (RunError, OSError) as error:
                self._stop(str(error))
                return
            if self._draining:
                process.send(signal.SIGTERM if self._cancelled else signal.SIGUSR1)
            code = await process.wait()
            del self._processes[shard]
            status = read_status(path)
            state = "running" if status is None else status.state
            self._interrupted |= code == EXIT_INTERRUPTED or state == "interrupted"
            is_killed = code < 0 or (code > _SIGNALLED and code != EXIT_INTERRUPTED)
            if state == "stopped" or not (is_killed or code in (EXIT_DONE, EXIT_INTERRUPTED) or state == "incomplete"):
                note = status.note if status is not None else ""
                self._stop(note or f"collector {shard} has failed: {output.last}")
                return
            if self._draining or not is_killed or state != "running":
                return
            deaths = deaths + 1 if status is None or status.measured <= measured else 1
            number = -code if code < 0 else code - _SIGNALLED
            if deaths == MAX_DEATHS:
                self._stop(f"collector {shard} was killed by signal {number} {deaths} times without storing a rollout")
                return
            self._print_line(f"collector {shard} was killed by signal {number}; another one continues its share")
            measured = measured if status is None else status.measured
            while is_locked(path) and not self._draining:  # noqa: ASYNC110  # by a process that has not quite ended
                await asyncio.sleep(POLL_S)

    def _update(self) -> None:
        for shard in self._shards:
            if status := read_status(shard.output(self._output)):
                self._statuses[shard] = status
                self._failures[shard, status.started] = Counter(status.failures)
        if len(self._statuses) < len(self._shards):
            return
        failures = sum(self._failures.values(), Counter[str]())
        counts = {"failures": dict(failures), "failed_attempts": failures.total()}
        self.status = summed(self._before, [*self._statuses.values()]).model_copy(update=counts)
        failed, collected = self.status.failed - self._before.failed, self.status.measured - self._before.measured
        if why := too_many_failures(failed, collected, failures, self._max_failure_rate):
            self._stop(why)
        self._write_status(self.status)

    def _relay(self, line: str) -> None:
        """Print what a collector reports, once: of the failures of a kind, each reports the first."""
        subject = line.partition(" (")[0]
        if subject not in self._printed:
            self._printed.add(subject)
            self._print_line(line)


class _LineSplitter:
    """Splits the output of a process into lines."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._incomplete = b""
        self.last = "it has printed nothing"
        """The last line that was complete."""

    def write(self, data: bytes) -> None:
        *lines, self._incomplete = (self._incomplete + data).split(b"\n")
        for line in lines:
            self.last = line.decode("utf-8", "replace")
            self._print_line(self.last)
