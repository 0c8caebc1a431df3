"""Small servers, server folders and TCP peers for the tests of services/: real ones on free ports, nothing patched."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import Json
from rollyard.services.config.load import load
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.run_config import RunConfig
from rollyard.services.http.client import RUN_HEADER, AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.connection_pool import REQUEST_HEADER
from rollyard.services.http.listener import bind
from rollyard.services.http.request import Handler, HttpResponse
from rollyard.services.http.transport import HttpTransport, LocalTransport, Transport
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.processes import free_port

KEYS = Keys(run_id="r1", secret="a secret of this test")
_numbers = itertools.count(1)

PLAIN_APP = """
from pydantic import BaseModel, SecretStr
from rollyard.services.server.app import Server
from rollyard.services.server.settings import ServerSettings
from rollyard.records.types import ServerRef

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
    """Create a user's server folder below `root` and return its name.

    The name is unique because Python imports a module name only once.
    """
    name = f"user_server_{next(_numbers)}"
    folder = root / family / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(app)
    for stem, text in files.items():
        (folder / f"{stem}.py").write_text(text)
    return name


def load_text(root: Path, text: str, *overrides: str, environ: Mapping[str, str] | None = None) -> RunConfig:
    """Write `text` to a config file below `root` and load it as ng_run does."""
    (root / "config.yaml").write_text(text)
    return load(["config.yaml"], parse_overrides(overrides), [root, INSTALLED], environ or {})


def server_yaml(
    implementation: str, settings: str = "{}", name: str = "environment", family: str = "resources_servers"
) -> str:
    """A config file with one server."""
    return f"{name}:\n  {family}:\n    {implementation}: {settings}\n"


def make_server(
    name: str = "echo",
    *,
    keys: Keys = KEYS,
    client: ServerClient | None = None,
    routes: Mapping[str, Handler] | None = None,
    cancellable: Mapping[str, Handler] | None = None,
) -> Server:
    """A server with these routes; `cancellable` ones end when the caller disconnects."""
    context = Context(name, keys, client or make_client({}, LocalTransport(HttpTransport())))
    server = Server(ServerSettings(), context)
    for path, handler in {**(routes or {}), **(cancellable or {})}.items():
        server.route(path, handler, cancellable=path in (cancellable or {}))
    return server


@contextlib.asynccontextmanager
async def listening(server: Server, host: str = "127.0.0.1") -> AsyncIterator[HostedServer]:
    hosted = HostedServer(server, bind(host, 0))
    await hosted.listen()
    await hosted.start()
    try:
        yield hosted
    finally:
        await hosted.stop()


@contextlib.asynccontextmanager
async def http_transport() -> AsyncIterator[HttpTransport]:
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
    """Send one request through the bare transport, without ServerClient."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    content_type = {"content-type": "application/json"} if data else {}
    return await transport.send(method, url, data, {**content_type, **(headers or {})}, timeout_s)


def make_client(
    servers: Mapping[str, list[str]] | Callable[[], Mapping[str, list[str]]],
    transport: Transport,
    retry_policy: RetryPolicy | None = None,
    keys: Keys = KEYS,
    channels: bool = False,
) -> ServerClient:
    """A client whose directory is `servers`; a callable is called again at every refresh.

    `channels`: whether all servers accept channels according to the directory.
    """

    async def directory() -> Directory:
        current = servers() if callable(servers) else servers
        urls = frozenset(itertools.chain(*current.values())) if channels else frozenset()
        return Directory(run_id=keys.run_id, servers=dict(current), families={}, settings={}, channels=urls)

    return ServerClient(transport, keys, AddressBook(directory), retry_policy or RetryPolicy(wait_s=0.1, pause_s=0.01))


async def failure_of(work: Awaitable[object]) -> Failure:
    """The Failure that `work` must raise."""
    try:
        await work
    except Failure as failure:
        return failure
    raise AssertionError("no failure was raised")


async def failure_kind_of(work: Awaitable[object]) -> FailureKind:
    """The kind of the Failure that `work` must raise."""
    return (await failure_of(work)).kind


def http(body: bytes = b"{}", status: str = "200 OK", run: str | None = KEYS.run_id, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *more, *([f"{RUN_HEADER}: {run}"] if run else [])]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass
class Peer:
    """A scripted TCP peer: the n-th request gets the n-th response.

    None closes the connection without a response; b"" sends nothing and keeps the connection open.
    """

    script: list[bytes | None]
    raw: bool = False
    """Sends each response exactly as scripted, without the request id that servers of the run echo."""
    url: str = ""
    requests: int = 0
    connections: int = 0
    seen: list[bytes] = field(default_factory=list)
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one connection."""
        self.connections += 1
        self._writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = (line[16:] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:")
                length = next(found, b"0")
                self.seen.append(head + await reader.readexactly(int(length)))
                response = self.script[min(self.requests, len(self.script) - 1)]
                self.requests += 1
                if response is None:
                    break
                writer.write(response if self.raw else _with_request_id(response, head))
                await writer.drain()
        writer.close()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


def _with_request_id(response: bytes, head: bytes) -> bytes:
    request_id = next((line for line in head.split(b"\r\n") if line.startswith(REQUEST_HEADER.encode() + b":")), None)
    status, line_end, rest = response.partition(b"\r\n")
    if request_id is None or RUN_HEADER.encode() not in rest:
        return response
    return b"".join((status, line_end, request_id, line_end, rest))


@contextlib.asynccontextmanager
async def peer(*script: bytes | None, raw: bool = False) -> AsyncIterator[Peer]:
    scripted = Peer(list(script), raw)
    listener = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield scripted
    finally:
        listener.close()
        scripted.close()
        await asyncio.sleep(0)


def unused_url() -> str:
    return f"http://127.0.0.1:{free_port()}"
