"""Records that the processes of a run exchange: launch, registration, heartbeat, server directory. All are frozen."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Set
from typing import Literal, Self

from pydantic import Field

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json, Record

StackKind = Literal["rollyard", "nemo_gym"]
"""Whose head it is. NeMo Gym's has no run id, registers no servers and accepts no reports."""
_MAX_PATHS = 6
DEFAULT_CLIENT_BYTES = 512 * 1024 * 1024
"""Half of what the server of a small host holds in memory for all its requests."""


MIN_TOKEN = 16
"""Minimum length in characters of a token from which secrets are derived, because they are no stronger than it."""


def derived(token: str, purpose: str) -> str:
    """Return a secret that everybody who has the token can compute, and that does not reveal the token."""
    return hmac.new(token.encode(), f"rollyard {purpose}".encode(), hashlib.sha256).hexdigest()


PLAY_PREFIX = "play-"


def play_token(token: str) -> str:
    """Return the token that opens the play plane of a run alone. Raises ValueError if the run token is too short, or is
    itself a play token.
    """
    if token.startswith(PLAY_PREFIX):
        raise ValueError(f"found a play token (it begins with {PLAY_PREFIX}); expected the run token")
    if len(token) < MIN_TOKEN:
        raise ValueError(f"the run token has {len(token)} characters; a play token requires at least {MIN_TOKEN}")
    return PLAY_PREFIX + derived(token, "play token")


def check_token(token: str) -> None:
    """Raise OperatorError unless it can be the token of a server: HTTP can send it, and it is no play token."""
    found = ""
    if not token:
        found = "is empty"
    elif token.startswith(PLAY_PREFIX):
        found = f"is a play token (it begins with {PLAY_PREFIX}), which opens another run to those who only play in it"
    elif not (token.isascii() and token.isprintable() and token == token.strip()):
        found = "contains characters that HTTP cannot send"
    if found:
        raise OperatorError(f"the token {found}; expected printable ASCII, such as that of: openssl rand -hex 16")


class AccessRules(Record):
    """Who may call the servers of a run in addition to root and the user who started it, and how much at once."""

    other_users: bool = False
    """If the run has no token: whether all users of the host may."""
    hosts: tuple[str, ...] = ()
    """If the run has no token: additional host names to accept in requests, such as that of a proxy."""
    client_requests: int = 16_384
    """Requests in flight of each other user or host, at each server."""
    client_bytes: int = DEFAULT_CLIENT_BYTES
    """Bytes of the bodies of these requests."""


class TlsFiles(Record):
    """Paths of the files with which a run's servers speak HTTPS. They are the same on every host of the run."""

    certificate: str
    """PEM: the certificate, and those of intermediate authorities."""
    key: str
    ca: str | None = None
    """PEM: a private authority, which the run's clients accept in addition to the system's."""


class Keys(Record):
    """Secrets shared by the processes of one run. Created by the process that starts the run; never shown or served."""

    run_id: str
    """Sent with every request, so that a server does not handle a request for a different run on the same port."""
    secret: str = Field(repr=False)
    """Signs session cookies and authorizes servers to register with the head."""
    token: str | None = Field(default=None, repr=False)
    """Bearer token required for every request when a server is bound to a non-loopback address."""
    access: AccessRules = AccessRules()
    tls: TlsFiles | None = None
    """None: the servers speak plain HTTP."""

    @property
    def ca_files(self) -> tuple[str, ...]:
        """Files of the authorities that the run's clients accept in addition to the system's."""
        return (self.tls.ca,) if self.tls is not None and self.tls.ca is not None else ()


class Launch(Record):
    """Everything that a server process needs to start. It is sent through the process's standard input."""

    name: str
    instance: str
    """Name that is unique within the run: server name, replica and start count."""
    family: str
    implementation: str
    folder: str
    settings: Json
    keys: Keys
    head_url: str
    parent_pid: int
    """The server exits when this process dies. 0 if the process runs on a different host."""
    advertise: str | None = None
    """Host name under which other hosts reach this host, if it differs from the bound address."""
    log_folder: str | None = None
    check_only: bool = False
    """If true, only create the server, check for problems that would prevent it from starting, and exit."""


class ServerCode(Record):
    """The code that a server process has loaded, computed in `services/config/server_code.py`."""

    digest: str
    files: dict[str, str]
    """Each file in the server's own folder, such as `agents/mine/app.py` -> short digest of its content."""
    packages: dict[str, str] = Field(default_factory=dict)
    """Only in records of older versions."""
    folder: str = ""
    """The server's own folder, as in the paths of `files`."""
    revision: str | None = None
    """Commit that was checked out in the folder; empty outside of git. It is not compared. None: a record of an older
    version, whose digests are of other files and cannot be compared with those of this version."""

    def changes_to(self, new: ServerCode) -> str:
        if self.digest == new.digest:
            return ""
        if (self.revision is None) != (new.revision is None):
            return "recorded by different versions of Rollyard"
        before, now = self.files, new.files
        changed = {path for path in before.keys() & now.keys() if before[path] != now[path]}
        parts = (("changed", changed), ("added", now.keys() - before.keys()), ("removed", before.keys() - now.keys()))
        return ", ".join(f"{what} {_join_paths(paths)}" for what, paths in parts if paths) or "changed"


def _join_paths(paths: Set[str]) -> str:
    more = len(paths) - _MAX_PATHS
    return " ".join(sorted(paths)[:_MAX_PATHS]) + (f" and {more} more" if more > 0 else "")


class CodeVersion(Record):
    """The code of the servers that a collection uses, as recorded when a command started or resumed it."""

    digest: str
    """Short digest. Rows collected with this version have it as `_ng_code`, unless this is the first version."""
    servers: dict[str, ServerCode]
    """Server name -> its code; a server that does not report its code is absent."""
    since: float

    @classmethod
    def of(cls, servers: Mapping[str, ServerCode], since: float) -> Self:
        text = "\n".join(f"{name} {code.digest}" for name, code in sorted(servers.items()))
        return cls(digest=hashlib.sha256(text.encode()).hexdigest()[:12], servers=dict(servers), since=since)

    def changes_to(self, new: CodeVersion) -> list[str]:
        lines = []
        for name in sorted({*self.servers, *new.servers}):
            before, now = self.servers.get(name), new.servers.get(name)
            if before is None:
                lines.append(f"{name}: its code was not reported before")
            elif now is None:
                lines.append(f"{name}: its code is no longer reported")
            elif changes := before.changes_to(now):
                lines.append(f"{name}: {changes}")
        return lines


class Registration(Record):
    """Announces where a server process listens, before and after it is ready."""

    name: str
    instance: str
    url: str
    pid: int
    ready: bool = False
    phase: str = ""
    code: ServerCode | None = None
    """None if the process does not report its code."""
    open_files: int | None = None
    """How many files the process may open."""
    channels: bool = False
    """Whether the server accepts channels: connections that several requests share (services/http/channel.py)."""


class Heartbeat(Record):
    """Sent every few seconds by each instance. The head drops an instance that stops sending it."""

    instance: str
    requests: int
    in_flight: int
    sessions: int
    cpu: float = 0.0
    """Share of a core that its process used in the last seconds."""
    phase: str = ""
    """The recovery that the server is performing while it stays ready."""


class ServerInstance(Record):
    """One running instance, in the format of NeMo Gym's `/server_instances` with additional counters."""

    process_name: str
    server_type: str
    name: str
    """The implementation, as in NeMo Gym's listing. Other servers refer to this one by `server_name`."""
    server_name: str
    dir_path: str
    entrypoint: str
    host: str | None
    port: int | None
    pid: int | None
    config_path: str
    url: str | None
    status: Literal["starting", "success", "timeout", "restarting", "connection_error"]
    """`success` means ready, as in NeMo Gym. `connection_error`: a server that runs elsewhere, or one of a NeMo Gym
    stack, does not respond."""
    start_time: float
    uptime_seconds: float
    ready: bool
    requests: int
    requests_per_s: float = 0.0
    in_flight: int
    sessions: int
    restarts: int
    cpu: float = 0.0
    """Share of a core that its process used in the last seconds."""
    bottleneck: str = ""
    """Why this server limits the speed of the run, and what to do; empty if it does not."""
    phase: str = ""
    """The startup phase, the recovery in progress, or why the server does not respond."""
    origin: str = ""
    """Where a server runs that is not Rollyard's own: its URL, or the interpreter of its program."""


class Directory(Record):
    """The servers of a run and the URLs of their instances."""

    run_id: str
    servers: dict[str, list[str]]
    """Server name -> base URLs of its ready instances; empty if none is ready."""
    quiet: dict[str, list[str]] = Field(default_factory=dict)
    """Server name -> base URLs of instances with late heartbeats, which may be busy. Their sessions continue."""
    instances: list[str] = Field(default_factory=list)
    """Names of all registered instances, whatever their state. A name is removed when the process exits."""
    families: dict[str, str]
    start_timeouts_s: dict[str, float] = Field(default_factory=dict)
    """Server name -> its start timeout, if set. Callers wait that long for the server to become ready."""
    settings: Json
    """Every server's settings, without addresses and secrets. They are part of a collection's identity."""
    references: dict[str, list[str]] = Field(default_factory=dict)
    """Server name -> the servers that its settings refer to."""
    code: dict[str, str] = Field(default_factory=dict)
    """Server name -> digest of the code of its instances, if they report it."""
    changed_code: dict[str, str] = Field(default_factory=dict)
    """Server name -> how the code of a rejected instance differs from the code with which the run started."""
    foreign: dict[str, str] = Field(default_factory=dict)
    """Base URL of each server that is not Rollyard's own -> the latest instance there. Such servers do not confirm to
    which run they belong, and keep their URL when they restart, so a session is lost when its instance changes."""

    bottlenecks: dict[str, str] = Field(default_factory=dict)
    """Server name -> why it limits the speed of the run, and what to do, as a sentence. Most servers have none."""
    open_files: dict[str, int] = Field(default_factory=dict)
    """Server name -> how many files each of its processes may open; the lowest number of them."""
    channels: frozenset[str] = frozenset()
    """Base URLs of the instances that accept channels; the others get plain HTTP."""

    def has(self, server: str, url: str) -> bool:
        """Return True if the instance at `url` is registered, even if its heartbeats are late."""
        return url in self.servers.get(server, ()) or url in self.quiet.get(server, ())


class HeadFile(Record):
    """`head.json` in the run's folder (mode 0600), which other commands use to find the run."""

    run_id: str
    url: str
    pid: int
    host: str = ""
    """Name of the host that `pid` is on; empty in the files of older versions."""
    folder: str = ""
    token: str | None = Field(default=None, repr=False)
    ca_file: str | None = None
    """File of the authority that issued the servers' certificates, if it is a private one."""
    private: bool = False
    """Another command, such as ng_eval, started the run for itself."""
    stack: StackKind = "rollyard"

    @classmethod
    def at(cls, address: str, token: str | None = None, scheme: str = "http") -> Self:
        """Return the head at HOST:PORT, which then speaks `scheme`, or at a URL."""
        return cls(
            run_id="", url=(address if "://" in address else f"{scheme}://{address}").rstrip("/"), pid=0, token=token
        )


class HeadServer(Record):
    """NeMo Gym's setting `head_server`."""

    host: str = "127.0.0.1"
    port: int = Field(default=11000, ge=1, le=65535)


class RunOrigin(Record):
    """Who started a run and where. The head returns it only to that user."""

    run_id: str
    folder: str
    uid: int
    pid: int
