"""Supervisor: all of a run's server processes up, watched, and down again.

A process that ends before it was ever ready stops the start: the log's end says why. One that dies later is started
again, with a pause that doubles, while the run goes on.
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
from rollyard.services.runtime.launcher import Launcher, Process
from rollyard.services.types import Json, Keys, Launch

log = logging.getLogger(__name__)

STOP_GRACE_S = 6.0
LOG_TAIL_LINES = 20
TELL_EVERY_S = 15.0
"""A server that is getting ready is mentioned so often, and when its phase changes."""
GIVE_UP_FIRST_S = 10.0
"""A server with a start_timeout_s of its own gives up by itself, saying why, before it is given up on."""


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
    """With which its process ended last."""
    since: float = 0.0
    pause_s: float = 0.0
    keeper: asyncio.Task[None] | None = None
    """Waits for its process and starts the next one."""
    replacing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while `reload` ends its process: the keeper does not start the next one."""

    @property
    def title(self) -> str:
        return self.spec.name if self.spec.settings.replicas == 1 else f"{self.spec.name}[{self.replica}]"


class StartupProgress:
    """Lines about servers that are getting ready: another phase at once, more of the same (3/8, 4/8) now and then."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()
        self._told: dict[str, tuple[str, float]] = {}

    def tell(self, title: str, phase: str) -> None:
        """`title` is in `phase` now; nothing is said of a server that tells none."""
        kind, now = phase.rstrip("0123456789/ "), time.monotonic()
        told, told_at = self._told.get(title, ("", 0.0))
        if phase and (kind != told or now - told_at > TELL_EVERY_S):
            self._told[title] = kind, now
            self._say(f"  {title:<36} {phase}, {now - self._began:.0f} s")


class Supervisor:
    """Starts every replica of every server and keeps it running."""

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
        """Not ready yet since the start."""
        self._watch_tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._began = time.monotonic()
        self._progress = StartupProgress(say)

    async def start(self) -> None:
        """Start all and wait until each is ready. Raises RunError or OperatorError naming the one that is not, with its
        log's end.
        """
        self._waiting = list(self._watched)
        await asyncio.gather(*(self._spawn(watched) for watched in self._watched))
        waiting = self._waiting
        while waiting:
            for watched in list(waiting):
                if self._registry.is_ready(watched.instance):
                    watched.was_ready = True
                    waiting.remove(watched)
                    self._say(self._line(watched))
                elif watched.process is None and not watched.was_ready:
                    # What its settings or this machine lack is the operator's to mend, whichever process found it.
                    kind = OperatorError if watched.status == EXIT_OPERATOR else RunError
                    raise kind(f"{watched.title} ended before it was ready.\n{self._log_end(watched)}")
                else:
                    self._progress.tell(watched.title, self._registry.phase(watched.instance))
            late = [watched for watched in waiting if time.monotonic() > self._began + self._patience_s(watched)]
            if late:
                laggards = ", ".join(watched.title for watched in late)
                raise RunError(f"not ready within {self._limit(late[0])}: {laggards}.\n{self._log_end(late[0])}")
            await asyncio.sleep(0.02)

    async def reload(self, name: str) -> None:
        """End every process of the server, and start as many with the code that is on disk now.

        This is not a crash: nothing pauses, and no restart is counted. Returns before the new processes are ready.
        """
        task = asyncio.create_task(self._reload([watched for watched in self._watched if watched.spec.name == name]))
        self._watch_tasks.append(task)
        await asyncio.shield(task)  # half a reload would leave the server without a keeper

    async def _reload(self, replicas: list[_Replica]) -> None:
        # All end before the first one starts: two replicas never run different code.
        await asyncio.gather(*(self._end(watched) for watched in replicas))
        if replicas[0].spec.settings.port:
            # Others know the new process's address already, and may call it before it is in the directory.
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
            watched.keeper = asyncio.create_task(self._start_again(watched))
            self._watch_tasks.append(watched.keeper)

    async def _end(self, watched: _Replica) -> None:
        watched.replacing.set()
        while watched.keeper is not None and not watched.keeper.done():
            if watched.process is not None:
                watched.process.terminate()
            _, late = await asyncio.wait([watched.keeper], timeout=STOP_GRACE_S)
            if late and watched.process is not None:
                watched.process.kill()

    async def stop(self) -> None:
        """Stop every server: ask, wait a few seconds, end."""
        self._stopping.set()
        processes = [watched.process for watched in self._watched if watched.process is not None]
        for process in processes:
            process.terminate()
        keepers = [keeper for keeper in self._watch_tasks if not keeper.done()]
        if keepers:
            _, late = await asyncio.wait(keepers, timeout=STOP_GRACE_S)
            for process in processes if late else ():
                process.kill()
            for keeper in late:
                await asyncio.wait([keeper], timeout=STOP_GRACE_S)
                keeper.cancel()

    def _patience_s(self, watched: _Replica) -> float:
        own = watched.spec.settings.start_timeout_s
        return self._ready_timeout_s if own is None else own + GIVE_UP_FIRST_S

    def _limit(self, watched: _Replica) -> str:
        own = watched.spec.settings.start_timeout_s
        hint = "raise it with +ready_timeout_s=..." if own is None else "raise its start_timeout_s"
        return f"{self._patience_s(watched):g} s ({hint})"

    async def _spawn(self, watched: _Replica) -> None:
        watched.starts += 1
        watched.instance = f"{watched.title}#{watched.starts}"
        watched.since = time.monotonic()
        spec = watched.spec
        # The second replica of a server with a fixed port takes a free one.
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
        watched.keeper = asyncio.create_task(self._keep(watched, watched.process))
        self._watch_tasks.append(watched.keeper)
        if self._stopping.is_set():
            watched.process.kill()

    async def _keep(self, watched: _Replica, process: Process) -> None:
        status = await process.wait()
        watched.status = status
        watched.was_ready = watched.was_ready or self._registry.is_ready(watched.instance)
        self._registry.remove(watched.instance)
        watched.process = None
        if self._stopping.is_set() or watched.replacing.is_set():
            return
        if not watched.was_ready:
            return  # start() reports it
        lived = time.monotonic() - watched.since
        if lived > self._restarts.calm_after_s:
            watched.pause_s = 0.0
        while not self._stopping.is_set():
            watched.pause_s = self._restarts.next_pause_s(watched.pause_s)
            again = f"starting it again in {watched.pause_s:g} s"
            self._say(
                f"{watched.title} ended ({_ending(status)}) after {lived:.1f} s; {again}; log: {self._log(watched)}"
            )
            if await self._is_interrupted(watched):
                return
            self._registry.restarts[watched.spec.name] = self._registry.restarts.get(watched.spec.name, 0) + 1
            if await self._started(watched):
                return

    async def _is_interrupted(self, watched: _Replica) -> bool:
        """Pause. True as soon as the run stops or a reload starts the server."""
        waits = [asyncio.create_task(event.wait()) for event in (self._stopping, watched.replacing)]
        try:
            done, _ = await asyncio.wait(waits, timeout=watched.pause_s, return_when=asyncio.FIRST_COMPLETED)
            return bool(done)
        finally:
            for task in waits:
                task.cancel()

    async def _start_again(self, watched: _Replica) -> None:
        while not await self._started(watched):
            watched.pause_s = self._restarts.next_pause_s(watched.pause_s)
            if await self._is_interrupted(watched):
                return

    async def _started(self, watched: _Replica) -> bool:
        try:
            await self._spawn(watched)
        except Exception as error:  # whatever a launcher raises, the server is tried again
            log.warning("%s cannot be started", watched.title, exc_info=error)
            self._say(f"{watched.title} cannot be started: {error or type(error).__name__}")
            return False
        if watched not in self._waiting:  # of those `start` tells
            self._watch_tasks.append(asyncio.create_task(self._announce(watched, watched.instance)))
        return True

    async def _announce(self, watched: _Replica, instance: str) -> None:
        """Say when the instance is ready, unless it ends before."""
        while watched.process is not None and watched.instance == instance and not self._stopping.is_set():
            if self._registry.is_ready(instance):
                self._say(self._line(watched))
                return
            await asyncio.sleep(0.1)

    def _line(self, watched: _Replica) -> str:
        url = next((shown.url for shown in self._registry.instances() if shown.process_name == watched.instance), "")
        return f"  {watched.title:<36} ready  {url or '':<28} {time.monotonic() - self._began:5.1f} s"

    def _log(self, watched: _Replica) -> Path:
        return self._log_dir / f"{watched.title}.log"

    def _log_end(self, watched: _Replica) -> str:
        path = self._log(watched)
        lines = path.read_text("utf-8", "replace").splitlines()[-LOG_TAIL_LINES:] if path.exists() else []
        shown = "\n".join(f"  | {line}" for line in lines) or "  | (empty)"
        return f"{shown}\nIts log: {path}"


def _ending(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"signal {-status}"
