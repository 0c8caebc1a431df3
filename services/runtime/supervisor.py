"""Supervisor: starts, watches, restarts and stops a run's server processes.

A process that ends before it was ever ready fails the start, with the end of its log. One that dies later is restarted
after a pause that doubles each time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollyard.services.backoff import Restarts
from rollyard.services.config.load import ServerSpec
from rollyard.services.errors import EXIT_OPERATOR, OperatorError, RunError
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.run_types import Keys, Launch
from rollyard.services.runtime.launcher import Launcher, Process
from rollyard.services.types import Json

log = logging.getLogger(__name__)

STOP_GRACE_S = 6.0
LOG_TAIL_LINES = 20
REPORT_EVERY_S = 15.0
"""Interval of the lines about a server that is starting; a new phase is reported immediately."""
TIMEOUT_MARGIN_S = 10.0
"""Added to a server's own start_timeout_s, so that the server fails first and reports the cause itself."""


@dataclass(slots=True)
class _Replica:
    """One replica of one server, across restarts."""

    spec: ServerSpec
    replica: int
    starts: int = 0
    instance: str = ""
    process: Process | None = None
    was_ready: bool = False
    status: int = 0
    """Exit status of its last process."""
    since: float = 0.0
    pause_s: float = 0.0
    watch_task: asyncio.Task[None] | None = None
    """Waits for the process to end and restarts it."""
    replacing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while `reload` ends the process, so that `watch_task` does not restart it."""

    @property
    def title(self) -> str:
        return self.spec.name if self.spec.settings.replicas == 1 else f"{self.spec.name}[{self.replica}]"


class StartupProgress:
    """Prints the phases of starting servers: new phases at once, counts (3/8, 4/8) every `REPORT_EVERY_S`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._started_at = time.monotonic()
        self._reported: dict[str, tuple[str, float]] = {}

    def report(self, title: str, phase: str) -> None:
        """Report that `title` is in `phase`; an empty phase prints nothing."""
        kind, now = phase.rstrip("0123456789/ "), time.monotonic()
        reported, reported_at = self._reported.get(title, ("", 0.0))
        if phase and (kind != reported or now - reported_at > REPORT_EVERY_S):
            self._reported[title] = kind, now
            self._say(f"  {title:<36} {phase}, {now - self._started_at:.0f} s")


class Supervisor:
    """Starts all replicas of all servers and keeps them running."""

    def __init__(
        self,
        servers: Sequence[ServerSpec],
        registry: ServerRegistry,
        launcher: Launcher,
        keys: Keys,
        head_url: str,
        log_dir: Path,
        *,
        say: Callable[[str], None],
        ready_timeout_s: float = 300.0,
        restarts: Restarts | None = None,
        parent_pid: int | None = None,
    ) -> None:
        self._watched = [_Replica(spec, replica) for spec in servers for replica in range(spec.settings.replicas)]
        self._registry = registry
        self._launcher = launcher
        self._keys = keys
        self._head_url = head_url
        self._log_dir = log_dir
        self._say = say
        self._ready_timeout_s = ready_timeout_s
        self._restarts = restarts or Restarts()
        self._parent_pid = os.getpid() if parent_pid is None else parent_pid
        self._waiting: list[_Replica] = []
        """Replicas that were not ready yet when `start` last looked."""
        self._watch_tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._started_at = time.monotonic()
        self._progress = StartupProgress(say)

    async def start(self) -> None:
        """Start all replicas and wait until they are ready.

        Raises RunError or OperatorError naming the one that failed, with the end of its log.
        """
        self._waiting = list(self._watched)
        await asyncio.gather(*(self._spawn(watched) for watched in self._watched))
        waiting = self._waiting
        while waiting:
            for watched in list(waiting):
                if self._registry.is_ready(watched.instance):
                    watched.was_ready = True
                    waiting.remove(watched)
                    self._say(self._ready_line(watched))
                elif watched.process is None and not watched.was_ready:
                    # A configuration error stays an OperatorError, whichever process found it.
                    kind = OperatorError if watched.status == EXIT_OPERATOR else RunError
                    raise kind(f"{watched.title} ended before it was ready.\n{self._log_end(watched)}")
                else:
                    self._progress.report(watched.title, self._registry.phase(watched.instance))
            late = [watched for watched in waiting if time.monotonic() > self._started_at + self._timeout_s(watched)]
            if late:
                names = ", ".join(watched.title for watched in late)
                raise RunError(
                    f"not ready within {self._describe_timeout(late[0])}: {names}.\n{self._log_end(late[0])}"
                )
            await asyncio.sleep(0.02)

    async def reload(self, name: str) -> None:
        """Replace every process of the server, using the code that is now on disk.

        Unlike a crash, this neither pauses nor counts as a restart. Returns before the new processes are ready.
        """
        task = asyncio.create_task(self._reload([watched for watched in self._watched if watched.spec.name == name]))
        self._watch_tasks.append(task)
        await asyncio.shield(task)  # an interrupted reload would leave the server unwatched

    async def _reload(self, replicas: list[_Replica]) -> None:
        # All processes end before the first new one starts, so that replicas never run different code.
        await asyncio.gather(*(self._end(watched) for watched in replicas))
        if replicas[0].spec.settings.port:
            # The address stays the same, so servers could call the new process before it is in their
            # directory: wait until every instance has fetched a directory without it.
            before = self._registry.last_seen()
            while before & self._registry.last_seen() and not self._stopping.is_set():
                before &= self._registry.last_seen()
                await asyncio.sleep(0.05)
        if self._stopping.is_set():
            return
        self._registry.renew_code(replicas[0].spec.name)
        for watched in replicas:
            watched.replacing.clear()
            watched.pause_s = 0.0
            watched.watch_task = asyncio.create_task(self._restart_until_started(watched))
            self._watch_tasks.append(watched.watch_task)

    async def _end(self, watched: _Replica) -> None:
        watched.replacing.set()
        while watched.watch_task is not None and not watched.watch_task.done():
            if watched.process is not None:
                watched.process.terminate()
            _, late = await asyncio.wait([watched.watch_task], timeout=STOP_GRACE_S)
            if late and watched.process is not None:
                watched.process.kill()

    async def stop(self) -> None:
        """Stop every server: terminate, wait a few seconds, kill."""
        self._stopping.set()
        processes = [watched.process for watched in self._watched if watched.process is not None]
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

    def _timeout_s(self, watched: _Replica) -> float:
        own_timeout_s = watched.spec.settings.start_timeout_s
        return self._ready_timeout_s if own_timeout_s is None else own_timeout_s + TIMEOUT_MARGIN_S

    def _describe_timeout(self, watched: _Replica) -> str:
        own_timeout_s = watched.spec.settings.start_timeout_s
        hint = "raise it with +ready_timeout_s=..." if own_timeout_s is None else "raise its start_timeout_s"
        return f"{self._timeout_s(watched):g} s ({hint})"

    async def _spawn(self, watched: _Replica) -> None:
        watched.starts += 1
        watched.instance = f"{watched.title}#{watched.starts}"
        watched.since = time.monotonic()
        spec = watched.spec
        # Only the first replica uses a fixed port; the others take free ones.
        settings: Json = {**spec.raw, "port": 0} if watched.replica else spec.raw
        launch = Launch(
            name=spec.name,
            instance=watched.instance,
            family=spec.family,
            implementation=spec.implementation,
            folder=str(spec.folder),
            settings=settings,
            keys=self._keys,
            head_url=self._head_url,
            parent_pid=self._parent_pid,
            log_folder=str(self._log_dir.absolute()),
        )
        self._registry.expect(watched.instance)
        watched.process = await self._launcher.launch(launch, self._log(watched))
        watched.watch_task = asyncio.create_task(self._watch(watched, watched.process))
        self._watch_tasks.append(watched.watch_task)
        if self._stopping.is_set():
            watched.process.kill()

    async def _watch(self, watched: _Replica, process: Process) -> None:
        status = await process.wait()
        watched.status = status
        watched.was_ready = watched.was_ready or self._registry.is_ready(watched.instance)
        self._registry.remove(watched.instance)
        watched.process = None
        if self._stopping.is_set() or watched.replacing.is_set():
            return
        if not watched.was_ready:
            return  # start() reports it
        uptime_s = time.monotonic() - watched.since
        if uptime_s > self._restarts.reset_after_s:
            watched.pause_s = 0.0
        while not self._stopping.is_set():
            watched.pause_s = self._restarts.next_pause_s(watched.pause_s)
            again = f"restarting it in {watched.pause_s:g} s"
            self._say(
                f"{watched.title} ended ({_ending(status)}) after {uptime_s:.1f} s; {again}; log: {self._log(watched)}"
            )
            if await self._is_interrupted(watched):
                return
            self._registry.restarts[watched.spec.name] = self._registry.restarts.get(watched.spec.name, 0) + 1
            if await self._try_spawn(watched):
                return

    async def _is_interrupted(self, watched: _Replica) -> bool:
        """Pause before a restart; return True as soon as the run stops or a reload takes over."""
        waits = [asyncio.create_task(event.wait()) for event in (self._stopping, watched.replacing)]
        try:
            done, _ = await asyncio.wait(waits, timeout=watched.pause_s, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for task in waits:
                task.cancel()

    async def _restart_until_started(self, watched: _Replica) -> None:
        while not await self._try_spawn(watched):
            watched.pause_s = self._restarts.next_pause_s(watched.pause_s)
            if await self._is_interrupted(watched):
                return

    async def _try_spawn(self, watched: _Replica) -> bool:
        try:
            await self._spawn(watched)
        except Exception as error:  # retry on anything that a launcher raises
            log.warning("%s cannot be started", watched.title, exc_info=error)
            self._say(f"{watched.title} cannot be started: {error or type(error).__name__}")
            return False
        if watched not in self._waiting:  # `start` reports those
            self._watch_tasks.append(asyncio.create_task(self._announce(watched, watched.instance)))
        return True

    async def _announce(self, watched: _Replica, instance: str) -> None:
        """Print a line when the instance is ready, unless it ends first."""
        while watched.process is not None and watched.instance == instance and not self._stopping.is_set():
            if self._registry.is_ready(instance):
                self._say(self._ready_line(watched))
                return
            await asyncio.sleep(0.1)

    def _ready_line(self, watched: _Replica) -> str:
        url = next((shown.url for shown in self._registry.instances() if shown.process_name == watched.instance), "")
        return f"  {watched.title:<36} ready  {url or '':<28} {time.monotonic() - self._started_at:5.1f} s"

    def _log(self, watched: _Replica) -> Path:
        return self._log_dir / f"{watched.title}.log"

    def _log_end(self, watched: _Replica) -> str:
        path = self._log(watched)
        lines = path.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:] if path.exists() else []
        shown = "\n".join(f"  | {line}" for line in lines) or "  | (empty)"
        return f"{shown}\nIts log: {path}"


def _ending(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"signal {-status}"
