"""A server on a real socket: callers that hang up, many at once, registration at a head, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import orjson
import pytest

from rollyard.services.config.load import RunConfig
from rollyard.services.errors import FailureKind
from rollyard.services.head.client import RegistryClient
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.server import Head
from rollyard.services.http.client import AddressBook
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.run_types import Keys
from rollyard.services.runtime.hosting import HostedServer, bind
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import KEYS, a_server, client_of, closed_port, failure_of, listening, network, send, until


class Work:
    """Work that lasts until it is cancelled or let go."""

    def __init__(self) -> None:
        self.begun, self.cancelled, self.done = 0, 0, 0
        self.go = asyncio.Event()

    async def __call__(self, call: RawRequest) -> bytes:
        """Work."""
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.done += 1
        return b"{}"


async def hang_up_after(begun: asyncio.Event | Work, url: str) -> None:
    """POST, wait until the work has begun, close the connection."""
    host, _, port = url.rpartition("/")[0].removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /{url.rpartition('/')[2]} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json"
    writer.write(f"{head}\r\ncontent-length: 2\r\n\r\n{{}}".encode())
    await until(begun.is_set if isinstance(begun, asyncio.Event) else lambda: begun.begun)
    writer.close()
    await writer.wait_closed()


async def test_a_cancellable_handler_is_cancelled_when_the_caller_hangs_up() -> None:
    work = Work()
    server = a_server(cancellable={"/w": work})
    async with listening(server) as hosted:
        await hang_up_after(work, hosted.url + "/w")
        await until(lambda: work.cancelled)
        await until(lambda: server.in_flight == 0)
    assert work.done == 0


async def test_any_other_handler_finishes_what_it_began_when_the_caller_hangs_up() -> None:
    work = Work()
    server = a_server(routes={"/w": work})
    async with listening(server) as hosted:
        await hang_up_after(work, hosted.url + "/w")
        work.go.set()
        await until(lambda: work.done)
        await until(lambda: server.in_flight == 0)
    assert work.cancelled == 0


async def test_a_stream_is_ended_when_the_caller_hangs_up() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: x\n\n"
                begun.set()
                await asyncio.sleep(0.001)
        except (GeneratorExit, asyncio.CancelledError):
            ended.set()
            raise

    async def streaming(call: RawRequest) -> RawResponse:
        return RawResponse(stream=pieces(), content_type=b"text/event-stream")

    async with listening(a_server(cancellable={"/s": streaming})) as hosted:
        await hang_up_after(begun, hosted.url + "/s")
        await until(ended.is_set)


async def test_a_thousand_requests_at_once_are_all_answered() -> None:
    work = Work()
    server = a_server(routes={"/w": work})
    async with listening(server) as hosted, network() as transport:
        calls = [asyncio.create_task(send(transport, hosted.url + "/w")) for _ in range(1000)]
        await until(lambda: work.begun == 1000)
        work.go.set()
        assert {answer.status for answer in await asyncio.gather(*calls)} == {200}


async def test_connections_have_tcp_nodelay_on_asyncios_own_event_loop() -> None:
    with bind("127.0.0.1", 0) as sock:
        server = await asyncio.start_server(lambda reader, writer: accepted.set_result(writer), sock=sock)
        accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        _, client = await asyncio.open_connection(*sock.getsockname())
        writer = await accepted
        assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        client.close()
        server.close()


async def test_stopping_lets_running_requests_end() -> None:
    work = Work()
    async with network() as transport:
        hosted = HostedServer(a_server(routes={"/w": work}), bind("127.0.0.1", 0))
        await hosted.listen()
        running = asyncio.create_task(send(transport, hosted.url + "/w"))
        await until(lambda: work.begun)
        stopping = asyncio.create_task(hosted.stop())
        await until(lambda: not hosted.server.ready)
        work.go.set()
        assert (await running).status == 200
        await stopping
        assert (await failure_of(send(transport, hosted.url + "/w"))).kind is FailureKind.UNREACHABLE


async def test_a_hosted_server_that_never_listened_gives_its_port_back() -> None:
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    with contextlib.closing(sock):
        await HostedServer(a_server(), sock).stop()
        bind("127.0.0.1", port).close()


async def test_a_server_bound_to_ipv6_answers_at_its_url() -> None:
    try:
        bind("::1", 0).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with listening(a_server(), "::1") as hosted, network() as transport:
        assert (await send(transport, hosted.url + "/health", b"", "GET")).status == 200


def test_a_port_that_is_taken_is_refused_and_nothing_stays_open() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        bind("127.0.0.1", taken.getsockname()[1])


def test_a_bound_port_takes_connections_before_the_server_runs() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as sock:
        socket.create_connection(sock.getsockname(), 1.0).close()


@contextlib.asynccontextmanager
async def front_desk(keys: Keys = KEYS) -> AsyncIterator[tuple[HostedServer, ServerRegistry]]:
    """A listening head that knows no servers yet."""
    async with network() as transport:
        registry = ServerRegistry(keys.run_id, (), {})
        context = Context("head", keys, client_of({}, transport))
        async with listening(Head(ServerSettings(), context, registry, RunConfig((), {}))) as hosted:
            yield hosted, registry


async def test_a_server_that_the_run_does_not_know_cannot_join() -> None:
    async with front_desk() as (head, registry), network() as transport:
        link = RegistryClient(transport, head.url, KEYS)
        hosted = HostedServer(a_server("ghost"), bind("127.0.0.1", 0))
        failure = await failure_of(hosted.join("ghost#1", link, AddressBook(link.directory)))
        await hosted.stop()
        assert failure.kind is FailureKind.UNKNOWN_SERVER and failure.problem.server == "head"
        assert registry.instances() == []


async def test_a_head_that_cannot_be_reached_is_named_in_the_failure() -> None:
    async with network() as transport:
        failure = await failure_of(RegistryClient(transport, closed_port(), KEYS).directory())
    assert failure.kind is FailureKind.UNREACHABLE and failure.problem.server == "head"


async def test_a_head_that_answers_no_directory_is_a_failure() -> None:
    class Strange(Server):
        """Answers something else where the directory should be."""

    server = a_server("head")

    @server.app.get("/directory")
    async def directory() -> dict[str, int]:
        return {"hello": 1}

    async with listening(server) as hosted, network() as transport:
        failure = await failure_of(RegistryClient(transport, hosted.url, KEYS).directory())
    assert failure.kind is FailureKind.MALFORMED_ANSWER


async def test_health_names_server_and_run() -> None:
    async with listening(a_server("echo")) as hosted, network() as transport:
        told = orjson.loads((await send(transport, hosted.url + "/health", b"", "GET")).body)
    assert told == {"status": "ok", "server": "echo", "run_id": "r1"}
