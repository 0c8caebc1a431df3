"""Supervisor: starts, watches, restarts and stops a run's server processes.

If a process exits before it is ready, startup fails with the last lines of its log. A process that dies later is
restarted after a delay that doubles each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.errors import EXIT_OPERATOR, OperatorError, RunError
from rollyard.records.run_types import Keys
from rollyard.records.types import Json
from rollyard.services.backoff import Backoff
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.runtime.launcher import Launcher, Process

log = logging.getLogger(__name__)
REPORT_EVERY_S = 15.0
"""Interval between messages about a starting server. A new phase is reported immediately."""
STOP_GRACE_S = 6.0
LOG_TAIL_LINES = 20
TIMEOUT_MARGIN_S = 10.0
"""Added to a server's own start_timeout_s, so that the server fails first and reports the cause."""


@dataclass(slots=True)
class _Replica:
    """One replica of one server, across restarts."""

    spec: ServerSpec
    index: int
    starts: int = 0
    instance: str = ""
    process: Process | None = None
    was_ready: bool = False
    status: int = 0
    """Exit status of its last process."""
    since: float = 0.0
    failures: int = 0
    """Exits and failed starts in a row."""

    @property
    def title(self) -> str:
        return self.spec.name if self.spec.replicas == 1 else f"{self.spec.name}[{self.index}]"


class Supervisor:
    def __init__(
        self,
        servers: Sequence[ServerSpec],
        registry: ServerRegistry,
        launcher: Launcher,
        keys: Keys,
        head_url: str,
        log_dir: Path,
        *,
        print_line: Callable[[str], None],
        ready_timeout_s: float = 300.0,
        restarts: Backoff | None = None,
    ) -> None:
        self._replicas = [_Replica(spec, index) for spec in servers for index in range(spec.replicas)]
        self._registry = registry
        self._launcher = launcher
        self._keys = keys
        self._head_url = head_url
        self._log_dir = log_dir
        self._print_line = print_line
        self._ready_timeout_s = ready_timeout_s
        self._restarts = restarts or Backoff()
        self._waiting: list[_Replica] = []
        """Replicas that were not ready when `start` last checked."""
        self._watch_tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._started_at = time.monotonic()
        self._progress = StartupProgress(print_line)

    async def start(self) -> None:
        """Start all replicas and wait until they are ready. Raises RunError or OperatorError with the end of a log."""
        self._waiting = list(self._replicas)
        await asyncio.gather(*(self._spawn(replica) for replica in self._replicas))
        waiting = self._waiting
        while waiting:
            for replica in list(waiting):
                if self._registry.is_ready(replica.instance):
                    replica.was_ready = True
                    waiting.remove(replica)
                    self._print_line(self._ready_line(replica))
                elif replica.process is None and not replica.was_ready:
                    # A configuration error stays an OperatorError, even if the server's process detected it.
                    kind = OperatorError if replica.status == EXIT_OPERATOR else RunError
                    raise kind(f"{replica.title} exited before it was ready.\n{self._log_end(replica)}")
                else:
                    self._progress.report(replica.title, self._registry.phase(replica.instance))
            late = [replica for replica in waiting if time.monotonic() > self._started_at + self._timeout_s(replica)]
            if late:
                names = ", ".join(replica.title for replica in late)
                own = late[0].spec.settings.start_timeout_s is not None
                hint = "raise its start_timeout_s" if own else "raise it with --ready-timeout-s ..."
                limit = f"{self._timeout_s(late[0]):g} s ({hint})"
                raise RunError(f"not ready within {limit}: {names}.\n{self._log_end(late[0])}")
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Stop all servers: terminate their processes, then kill those that are still running after a few seconds."""
        self._stopping.set()
        processes = [replica.process for replica in self._replicas if replica.process is not None]
        for process in processes:
            process.terminate()
        watch_tasks = [watch_task for watch_task in self._watch_tasks if not watch_task.done()]
        if watch_tasks:
            _, late = await asyncio.wait(watch_tasks, timeout=STOP_GRACE_S)
            for process in processes if late else ():
                process.kill()
            for watch_task in late:
                await asyncio.wait([watch_task], timeout=STOP_GRACE_S)
                watch_task.cancel()

    def _timeout_s(self, replica: _Replica) -> float:
        own_timeout_s = replica.spec.settings.start_timeout_s
        return self._ready_timeout_s if own_timeout_s is None else own_timeout_s + TIMEOUT_MARGIN_S

    async def _spawn(self, replica: _Replica) -> None:
        replica.starts += 1
        replica.instance = f"{replica.title}#{replica.starts}"
        replica.since = time.monotonic()
        spec = replica.spec
        # Only the first replica uses a fixed port; the others take free ones.
        settings: Json = {**spec.raw, "port": 0} if replica.index else spec.raw
        log_folder = str(self._log_dir.absolute())
        launch = spec.launch(
            *(replica.instance, self._keys, self._head_url),
            settings=settings,
            parent_pid=os.getpid(),
            log_folder=log_folder,
        )
        self._registry.expect(replica.instance)
        replica.process = await self._launcher.launch(launch, self._log(replica))
        self._watch_tasks.append(asyncio.create_task(self._watch(replica, replica.process)))
        if self._stopping.is_set():
            replica.process.kill()

    async def _watch(self, replica: _Replica, process: Process) -> None:
        status = await process.wait()
        replica.status = status
        replica.was_ready = replica.was_ready or self._registry.is_ready(replica.instance)
        self._registry.remove(replica.instance)
        replica.process = None
        if self._stopping.is_set():
            return
        if not replica.was_ready:
            return  # `start` reports it
        uptime_s = time.monotonic() - replica.since
        if uptime_s > self._restarts.reset_after_s:
            replica.failures = 0
        while not self._stopping.is_set():
            replica.failures += 1
            pause_s = self._restarts.pause_s(replica.failures)
            ending = f"exit status {status}" if status >= 0 else f"signal {-status}"
            again = f"restarting it in {pause_s:g} s"
            self._print_line(
                f"{replica.title} exited ({ending}) after {uptime_s:.1f} s; {again}; log: {self._log(replica)}"
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
                return
            self._registry.restarts[replica.spec.name] = self._registry.restarts.get(replica.spec.name, 0) + 1
            if await self._try_spawn(replica):
                return

    async def _try_spawn(self, replica: _Replica) -> bool:
        try:
            await self._spawn(replica)
        except Exception as error:  # retry after any exception of a launcher
            log.debug("%s cannot be started", replica.title, exc_info=error)
            self._print_line(f"{replica.title} cannot be started: {error or type(error).__name__}")
            return False
        if replica not in self._waiting:  # `start` reports those
            self._watch_tasks.append(asyncio.create_task(self._announce(replica, replica.instance)))
        return True

    async def _announce(self, replica: _Replica, instance: str) -> None:
        """Print a line when the instance is ready, unless it exits first."""
        while replica.process is not None and replica.instance == instance and not self._stopping.is_set():
            if self._registry.is_ready(instance):
                self._print_line(self._ready_line(replica))
                return
            await asyncio.sleep(0.1)

    def _ready_line(self, replica: _Replica) -> str:
        url = next((shown.url for shown in self._registry.instances() if shown.process_name == replica.instance), "")
        return f"  {replica.title:<36} ready  {url or '':<28} {time.monotonic() - self._started_at:5.1f} s"

    def _log(self, replica: _Replica) -> Path:
        return self._log_dir / f"{replica.title}.log"

    def _log_end(self, replica: _Replica) -> str:
        path = self._log(replica)
        lines = path.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:] if path.exists() else []
        shown = "\n".join(f"  | {line}" for line in lines) or "  | (empty)"
        return f"{shown}\nLog: {path}"


class StartupProgress:
    """Prints the startup phases of servers: a new phase at once, new counts (3/8, 4/8) every `REPORT_EVERY_S`."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._started_at = time.monotonic()
        self._reported: dict[str, tuple[str, float]] = {}

    def report(self, title: str, phase: str) -> None:
        """Report that `title` is in `phase`; an empty phase prints nothing."""
        kind, now = phase.rstrip("0123456789/ "), time.monotonic()
        reported, reported_at = self._reported.get(title, ("", 0.0))
        if phase and (kind != reported or now - reported_at > REPORT_EVERY_S):
            self._reported[title] = kind, now
            self._print_line(f"  {title:<36} {phase}, {now - self._started_at:.0f} s")


async def all_or_first_error(starting: Iterable[Awaitable[None]]) -> None:
    """Wait for all. If one raises, cancel the others, wait until they have ended, and raise its error."""
    tasks = [asyncio.ensure_future(one) for one in starting]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
