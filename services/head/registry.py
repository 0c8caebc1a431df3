"""The server registry: stores the URL and readiness of each instance, and builds the directory. Does not use HTTP."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from rollyard.records.errors import Failure, FailureKind, did_you_mean
from rollyard.records.run_types import Directory, Heartbeat, Registration, ServerCode, ServerInstance
from rollyard.records.types import Json
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.config.server_entries import servers_of
from rollyard.services.http.loop_lag import BUSY

Status = Literal["starting", "success", "timeout", "restarting", "connection_error"]
RATE_S = 10.0
"""Time window over which the request rate is measured."""
GONE_S, START_S = 60.0, 600.0
"""After so long without a report, an instance that runs elsewhere has exited: a ready one, whose event loop may be
blocked for a while; and one that starts, which may load a model without a word (its own start_timeout_s goes first).
"""
USUAL_CPU = 0.6
"""Share of a core that a process can use without letting requests wait for each other."""


@dataclass(slots=True)
class _Instance:
    spec: ServerSpec
    instance: str
    started: float
    last_seen: float
    url: str | None = None
    pid: int | None = None
    ready: bool = False
    requests: int = 0
    in_flight: int = 0
    sessions: int = 0
    cpu: float = 0.0
    open_files: int | None = None
    channels: bool = False
    phase: str = ""
    is_down: bool = False
    counts: deque[tuple[float, int]] = field(default_factory=deque)
    """The time of each heartbeat, and the total number of requests at that time."""


class ServerRegistry:
    """The instances of one run. An instance is listed as quiet after `expiry_s` without a heartbeat."""

    def __init__(
        self,
        run_id: str,
        servers: Sequence[ServerSpec],
        settings: Json,
        *,
        elsewhere: Collection[str] = (),
        on_change: Callable[..., None] = lambda act, **detail: None,
        expiry_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_id = run_id
        self._settings = settings
        self.restarts: dict[str, int] = {}
        self.code: dict[str, ServerCode] = {}
        """Server name -> the code of its first instance. All later instances must have the same code."""
        self._changed_code: dict[str, str] = {}
        self._specs = {spec.name: spec for spec in servers}
        self._references = {name: servers_of(spec, self._specs) for name, spec in self._specs.items()}
        self._members: dict[str, _Instance] = {}
        self._expected: set[str] = set()
        self._foreign: dict[str, str] = {}
        """See Directory."""
        self._elsewhere = frozenset(elsewhere)
        """Servers that other processes start. Any process that has the run's secret may register instances of them."""
        self._on_change = on_change
        """Called for each instance that leaves the run, or that this process registers for it."""
        self._expiry_s = expiry_s
        self._clock = clock

    @property
    def replicas(self) -> dict[str, int]:
        """Server name -> number of instances that the config requests."""
        return {name: spec.replicas for name, spec in self._specs.items()}

    def expect(self, instance: str) -> None:
        """Accept registrations of `instance` until it is removed. Call this before its process starts."""
        self._expected.add(instance)

    def register_for(self, registration: Registration) -> None:
        """Register an instance of a server that cannot do so itself. Raises Failure, as `register` does."""
        if self.register(registration):
            self._on_change("register", instance=registration.instance, url=registration.url, ready=registration.ready)

    def register(self, registration: Registration) -> bool:
        """Register an instance, or update its URL and readiness; return whether these have changed, and not only what
        it says about its start. Raises Failure, such as unknown_server.
        """
        spec = self._specs.get(registration.name)
        if spec is None:
            detail = f"no server {registration.name!r} in this run{did_you_mean(registration.name, self._specs)}"
            raise Failure(FailureKind.UNKNOWN_SERVER, detail)
        if registration.name in self._elsewhere:
            self._remove_silent(spec, registration.instance)
        elif registration.instance not in self._expected:
            detail = (
                f"instance {registration.instance!r} is not expected: it was replaced, or this run never launched it"
            )
            raise Failure(FailureKind.UNKNOWN_SERVER, detail)
        self._check_code(registration)
        member = self._members.get(registration.instance)
        if member is not None and member.spec is not spec:
            detail = f"instance {registration.instance!r} belongs to {member.spec.name!r}, not to {registration.name!r}"
            raise Failure(FailureKind.UNKNOWN_SERVER, detail)
        if member is None:
            members = [one for one in self._members.values() if one.spec is spec]
            for other in (one for one in members if one.url == registration.url):
                self.remove(other.instance)  # its process has ended: another one listens at its address
            member = _Instance(spec, registration.instance, time.time(), self._clock())
            self._members[registration.instance] = member
        before = member.url, member.ready
        member.url, member.pid, member.last_seen = registration.url, registration.pid, self._clock()
        member.open_files, member.channels = registration.open_files, registration.channels
        # Registrations may arrive out of order.
        member.ready, member.phase = member.ready or registration.ready, registration.phase
        if spec.is_foreign:
            self._foreign[registration.url] = registration.instance
        return (member.url, member.ready) != before

    def _check_code(self, registration: Registration) -> None:
        """Raise Failure if the instance has different code, because its rewards would not be comparable."""
        name, code = registration.name, registration.code
        if code is None:
            return
        first = self.code.setdefault(name, code)
        if first.digest == code.digest:
            self._changed_code.pop(name, None)
            return
        changes = first.changes_to(code)
        self._changed_code[name] = changes
        detail = (
            f"the code of {name} changed since this run started ({changes}): restart ng_run to use the "
            "new code, or restore the old code"
        )
        raise Failure(FailureKind.BAD_REQUEST, detail)

    def _remove_silent(self, spec: ServerSpec, reporting: str) -> None:
        """Remove a server's silent instances once one of them, `reporting`, reports; a new one takes the place of those
        that are quiet. Nothing else says that processes started elsewhere exited.
        """
        ready_s = GONE_S if reporting in self._members else self._expiry_s
        start_s = spec.settings.start_timeout_s or START_S
        for instance, member in list(self._members.items()):
            silent_s = self._clock() - member.last_seen
            if member.spec is spec and instance != reporting and silent_s > (ready_s if member.ready else start_s):
                self.remove(instance)

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Store a heartbeat. Raises Failure for an unregistered instance, for example after the head restarted."""
        member = self._members.get(heartbeat.instance)
        if member is None:
            raise Failure(
                FailureKind.UNKNOWN_SERVER, f"instance {heartbeat.instance!r} is not registered: register first"
            )
        member.last_seen = self._clock()
        if member.spec.name in self._elsewhere:
            self._remove_silent(member.spec, member.instance)
        member.requests, member.in_flight = heartbeat.requests, heartbeat.in_flight
        member.sessions, member.cpu, member.phase = heartbeat.sessions, heartbeat.cpu, heartbeat.phase
        member.counts.append((member.last_seen, heartbeat.requests))
        while len(member.counts) > 2 and member.counts[1][0] <= member.last_seen - RATE_S:
            member.counts.popleft()

    def remove(self, instance: str) -> None:
        """Remove an instance whose process has exited. Its later registrations and heartbeats are rejected."""
        self._expected.discard(instance)
        if self._members.pop(instance, None) is not None:
            self._on_change("deregister", instance=instance)

    def mark_down(self, instance: str, reason: str) -> None:
        """Take an instance that runs elsewhere out of the directory, because it does not respond."""
        if (member := self._members.get(instance)) is not None:
            member.ready, member.is_down, member.phase = False, True, reason

    def is_ready(self, instance: str) -> bool:
        """Return whether the instance has reported that it is ready and is still sending heartbeats."""
        member = self._members.get(instance)
        return member is not None and self._status(member) == "success"

    def phase(self, instance: str) -> str:
        member = self._members.get(instance)
        return "" if member is None else member.phase

    def directory(self) -> Directory:
        servers: dict[str, list[str]] = {name: [] for name in self._specs}
        quiet: dict[str, list[str]] = {}
        open_files: dict[str, int] = {}
        for member in self._members.values():
            if member.url is None:
                continue
            if member.open_files is not None:
                name = member.spec.name
                open_files[name] = min(member.open_files, open_files.get(name, member.open_files))
            if (status := self._status(member)) == "success":
                servers[member.spec.name].append(member.url)
            elif status == "timeout":
                quiet.setdefault(member.spec.name, []).append(member.url)
        families = {name: spec.family for name, spec in self._specs.items()}
        limits = {name: spec.settings.start_timeout_s for name, spec in self._specs.items()}
        return Directory(
            run_id=self.run_id,
            servers=servers,
            quiet=quiet,
            instances=list(self._members),
            families=families,
            start_timeouts_s={name: limit for name, limit in limits.items() if limit is not None},
            settings=self._settings,
            references=self._references,
            code={name: code.digest for name, code in self.code.items()},
            changed_code=dict(self._changed_code),
            foreign=dict(self._foreign),
            bottlenecks=self.bottlenecks(),
            open_files=open_files,
            channels=frozenset(one.url for one in self._members.values() if one.channels and one.url is not None),
        )

    def bottlenecks(self) -> dict[str, str]:
        """Return the servers all of whose processes are busy, and a sentence about each: what it means, what to do."""
        if not any(member.cpu >= BUSY for member in self._members.values()):
            return {}
        of_server: defaultdict[str, list[_Instance]] = defaultdict(list)
        of_process: defaultdict[tuple[str | None, int | None], list[str]] = defaultdict(list)
        for member in self._members.values():
            if self._status(member) == "success":
                of_server[member.spec.name].append(member)
                of_process[urlsplit(member.url or "").hostname, member.pid].append(member.spec.name)
        found: dict[str, str] = {}
        for name, members in of_server.items():
            if (cpu := min(member.cpu for member in members)) < BUSY:
                continue
            sharing = of_process[urlsplit(members[0].url or "").hostname, members[0].pid]
            if sharing[0] != name:  # of servers in one process, the first one reports it
                continue
            found[name] = _bottleneck(members[0].spec, sharing, len(members), cpu)
        return found

    def instances(self) -> list[ServerInstance]:
        """Return every instance, ready or not. A server without instances is listed without a URL."""
        present = {member.spec.name for member in self._members.values()}
        absent = [_Instance(spec, spec.name, 0.0, 0.0) for name, spec in self._specs.items() if name not in present]
        bottlenecks = self.bottlenecks()
        return [self._display(member, bottlenecks) for member in (*self._members.values(), *absent)]

    def _status(self, member: _Instance) -> Status:
        if member.url is None:
            return "restarting" if self.restarts.get(member.spec.name) else "starting"
        if member.is_down:
            return "connection_error"
        if not member.ready:
            return "starting"  # heartbeats start only after startup, which may include loading a model
        return "timeout" if self._clock() - member.last_seen > self._expiry_s else "success"

    def _display(self, member: _Instance, bottlenecks: Mapping[str, str]) -> ServerInstance:
        spec, status = member.spec, self._status(member)
        address = urlsplit(member.url or "")
        return ServerInstance(
            process_name=member.instance,
            server_type=spec.family,
            name=spec.implementation,
            server_name=spec.name,
            dir_path=f"{spec.family}/{spec.implementation}",
            entrypoint=spec.settings.entrypoint,
            host=address.hostname,
            port=address.port,
            pid=member.pid,
            config_path=spec.name,
            url=member.url,
            status=status,
            start_time=member.started,
            uptime_seconds=time.time() - member.started if member.started else 0.0,
            ready=status == "success",
            requests=member.requests,
            requests_per_s=_rate(member),
            in_flight=member.in_flight,
            sessions=member.sessions,
            restarts=self.restarts.get(spec.name, 0),
            cpu=round(member.cpu, 3),
            bottleneck=bottlenecks.get(spec.name, ""),
            phase=member.phase,
            origin=spec.origin,
        )


def _bottleneck(spec: ServerSpec, sharing: Sequence[str], processes: int, cpu: float) -> str:
    """`sharing`: the servers in the busy process."""
    if len(sharing) > 1:
        return (
            f"{', '.join(sharing)} share one process, which uses {cpu:.0%} of a core and limits the speed: start them "
            "in separate processes (without --colocate)"
        )
    process = "its process uses" if processes == 1 else f"each of its {processes} processes uses"
    mend = (
        "it needs more cores (replicas: auto has given it its share)"
        if spec.is_auto
        else f"set replicas: {math.ceil(processes * cpu / USUAL_CPU)} (or auto) for it"
    )
    return f"{spec.name} limits the speed: {process} {cpu:.0%} of a core; {mend}"


def _rate(member: _Instance) -> float:
    if len(member.counts) < 2:
        return 0.0
    (started, before), (ended, after) = member.counts[0], member.counts[-1]
    return round((after - before) / (ended - started), 2) if ended > started else 0.0
