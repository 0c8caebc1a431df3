"""Small servers, folders and peers for the tests of services/: real ones, on free ports, nothing patched."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rollyard.services.config.load import load
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.run_config import RunConfig
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.client import RUN_HEADER, AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.connection_pool import REQUEST_HEADER
from rollyard.services.http.request import Handler
from rollyard.services.http.transport import HttpResponse, HttpTransport, LocalTransport, Transport
from rollyard.services.io.search_path import INSTALLED
from rollyard.services.run_types import Directory, Keys
from rollyard.services.runtime.hosting import HostedServer, bind
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json

KEYS = Keys(run_id="r1", secret="a secret of this test")
_numbers = itertools.count(1)

PLAIN_APP = """
from pydantic import BaseModel, SecretStr
from rollyard.services.server.app import Server
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import ServerRef

class Engine(BaseModel, extra="forbid"):
    threads: int = 1

class Settings(ServerSettings):
    speed: int = 1
    title: str = ""
    base_url: str = ""
    api_key: SecretStr | None = None
    engine: Engine = Engine()
    peer: ServerRef | None = None

class Plain(Server):
    Settings = Settings

server = Plain
"""


def make_folder(root: Path, family: str = "resources_servers", app: str = PLAIN_APP, **files: str) -> str:
    """A user's own server folder below `root`; its name, unique because modules of one name are imported once."""
    name = f"mine_{next(_numbers)}"
    folder = root / family / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(app)
    for stem, text in files.items():
        (folder / f"{stem}.py").write_text(text)
    return name


def load_text(root: Path, text: str, *overrides: str, environ: Mapping[str, str] | None = None) -> RunConfig:
    """The config file `text` below `root`, loaded as ng_run does."""
    (root / "config.yaml").write_text(text)
    return load(["config.yaml"], parse_overrides(overrides), [root, INSTALLED], environ or {})


def yaml_of(
    implementation: str, settings: str = "{}", name: str = "environment", family: str = "resources_servers"
) -> str:
    """One server as a config file."""
    return f"{name}:\n  {family}:\n    {implementation}: {settings}\n"


def a_server(
    name: str = "echo",
    *,
    keys: Keys = KEYS,
    client: ServerClient | None = None,
    routes: Mapping[str, Handler] | None = None,
    cancellable: Mapping[str, Handler] | None = None,
) -> Server:
    """A server with these hot routes."""
    context = Context(name, keys, client or client_of({}, LocalTransport(HttpTransport())))
    made = Server(ServerSettings(), context)
    for path, handler in (routes or {}).items():
        made.route(path, handler)
    for path, handler in (cancellable or {}).items():
        made.route(path, handler, cancellable=True)
    return made


@contextlib.asynccontextmanager
async def listening(server: Server, host: str = "127.0.0.1") -> AsyncIterator[HostedServer]:
    """The server on a free port, ready."""
    hosted = HostedServer(server, bind(host, 0))
    await hosted.listen()
    await hosted.start()
    try:
        yield hosted
    finally:
        await hosted.stop()


@contextlib.asynccontextmanager
async def network() -> AsyncIterator[HttpTransport]:
    """The real transport, closed at the end."""
    transport = HttpTransport()
    try:
        yield transport
    finally:
        await transport.close()


async def send(
    transport: Transport,
    url: str,
    body: Json | bytes = b"{}",
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> HttpResponse:
    """One request without the client above it."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    kind = {"content-type": "application/json"} if data else {}
    return await transport.send(method, url, data, {**kind, **(headers or {})}, timeout_s)


def client_of(
    servers: Mapping[str, list[str]] | Callable[[], Mapping[str, list[str]]],
    transport: Transport,
    retry_policy: RetryPolicy | None = None,
    keys: Keys = KEYS,
) -> ServerClient:
    """A client whose directory is `servers`, asked anew at every refresh."""

    async def directory() -> Directory:
        now = servers() if callable(servers) else servers
        return Directory(run_id=keys.run_id, servers=dict(now), families={}, settings={})

    return ServerClient(transport, keys, AddressBook(directory), retry_policy or RetryPolicy(wait_s=0.1, pause_s=0.01))


async def failure_of(work: Awaitable[object]) -> Failure:
    """The failure that `work` must end in."""
    try:
        await work
    except Failure as failure:
        return failure
    raise AssertionError("no failure was raised")


async def kind_of(work: Awaitable[object]) -> FailureKind:
    """Its kind."""
    return (await failure_of(work)).kind


def http(body: bytes = b"{}", status: str = "200 OK", run: str | None = KEYS.run_id, *more: str) -> bytes:
    """A whole HTTP answer as bytes."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *more, *([f"{RUN_HEADER}: {run}"] if run else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Peer:
    """A scripted TCP peer: the n-th request gets the n-th answer; None closes without a word, "" stays silent."""

    script: list[bytes | None]
    raw: bool = False
    """Answers as they are scripted, without the id that a server of the run repeats."""
    url: str = ""
    requests: int = 0
    connections: int = 0
    seen: list[bytes] = field(default_factory=list)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (line[16:] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), b"0"
                )
                self.seen.append(head + await reader.readexactly(int(length)))
                answer = self.script[min(self.requests, len(self.script) - 1)]
                self.requests += 1
                if answer is None:
                    break
                writer.write(answer if self.raw else _echoing(answer, head))
                await writer.drain()
        writer.close()

    def close(self) -> None:
        """Hang up on everybody."""
        for writer in self._writers:
            writer.close()


def _echoing(answer: bytes, head: bytes) -> bytes:
    """The answer with the request's id, as every server of the run repeats it."""
    named = next((line for line in head.split(b"\r\n") if line.startswith(REQUEST_HEADER.encode() + b":")), None)
    first, line_end, rest = answer.partition(b"\r\n")
    return b"".join((first, line_end, named, line_end, rest)) if named and RUN_HEADER.encode() in rest else answer


@contextlib.asynccontextmanager
async def peer(*script: bytes | None, raw: bool = False) -> AsyncIterator[Peer]:
    """A scripted peer on a free port."""
    made = Peer(list(script), raw)
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        listener.close()
        made.close()
        await asyncio.sleep(0)


def closed_port() -> str:
    """An address where nobody listens."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    sock.close()
    return f"http://127.0.0.1:{port}"


async def until(true: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for a condition; the time is for a test that hangs, not for a machine that is busy."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.002)
