"""A server on a real socket: disconnects, many requests at once, registration with a head, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from rollyard.records.errors import FailureKind
from rollyard.records.run_types import Keys
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.head.server import Head
from rollyard.services.http.client import AddressBook
from rollyard.services.http.listener import bind
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.runtime.hosting import HostedServer
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import KEYS, failure_of, http_transport, listening, make_client, make_server, send
from tests.support.waiting import until


class BlockingHandler:
    def __init__(self) -> None:
        self.started, self.cancelled, self.done = 0, 0, 0
        self.release = asyncio.Event()

    async def __call__(self, call: RawRequest) -> bytes:

        self.started += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.done += 1
        return b"{}"


async def disconnect_after(started: asyncio.Event | BlockingHandler, url: str) -> None:
    """POST, wait until the handler has started, close the connection."""
    host, _, port = url.rpartition("/")[0].removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /{url.rpartition('/')[2]} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json"
    writer.write(f"{head}\r\ncontent-length: 2\r\n\r\n{{}}".encode())
    await until(started.is_set if isinstance(started, asyncio.Event) else lambda: started.started)
    writer.close()
    await writer.wait_closed()


async def test_a_cancellable_handler_is_cancelled_when_the_caller_disconnects() -> None:
    handler = BlockingHandler()
    server = make_server(cancellable={"/w": handler})
    async with listening(server) as hosted:
        await disconnect_after(handler, hosted.url + "/w")
        await until(lambda: handler.cancelled)
        await until(lambda: server.in_flight == 0)
    assert handler.done == 0


async def test_any_other_handler_finishes_when_the_caller_disconnects() -> None:
    handler = BlockingHandler()
    server = make_server(routes={"/w": handler})
    async with listening(server) as hosted:
        await disconnect_after(handler, hosted.url + "/w")
        handler.release.set()
        await until(lambda: handler.done)
        await until(lambda: server.in_flight == 0)
    assert handler.cancelled == 0


async def test_a_stream_ends_when_the_caller_disconnects() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"data: x\n\n"
                started.set()
                await asyncio.sleep(0.001)
        except (GeneratorExit, asyncio.CancelledError):
            ended.set()
            raise

    async def streaming(call: RawRequest) -> RawResponse:
        return RawResponse(stream=chunks(), content_type=b"text/event-stream")

    async with listening(make_server(cancellable={"/s": streaming})) as hosted:
        await disconnect_after(started, hosted.url + "/s")
        await until(ended.is_set)


async def test_hundreds_of_concurrent_requests_are_all_answered() -> None:
    handler = BlockingHandler()
    server = make_server(routes={"/w": handler})
    async with listening(server) as hosted, http_transport() as transport:
        calls = [asyncio.create_task(send(transport, hosted.url + "/w")) for _ in range(400)]
        await until(lambda: handler.started == 400)
        handler.release.set()
        assert {response.status for response in await asyncio.gather(*calls)} == {200}


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


async def test_stopping_waits_for_running_requests() -> None:
    handler = BlockingHandler()
    async with http_transport() as transport:
        hosted = HostedServer(make_server(routes={"/w": handler}), bind("127.0.0.1", 0))
        await hosted.listen()
        running = asyncio.create_task(send(transport, hosted.url + "/w"))
        await until(lambda: handler.started)
        stopping = asyncio.create_task(hosted.stop())
        await until(lambda: not hosted.server.ready)
        handler.release.set()
        assert (await running).status == 200
        await stopping
        assert (await failure_of(send(transport, hosted.url + "/w"))).kind is FailureKind.UNREACHABLE


async def test_a_server_bound_to_ipv6_answers_at_its_url() -> None:
    try:
        bind("::1", 0).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with listening(make_server(), "::1") as hosted, http_transport() as transport:
        assert (await send(transport, hosted.url + "/health", b"", "GET")).status == 200


@contextlib.asynccontextmanager
async def listening_head(keys: Keys = KEYS) -> AsyncIterator[tuple[HostedServer, ServerRegistry]]:
    async with http_transport() as transport:
        registry = ServerRegistry(keys.run_id, (), {})
        context = Context("head", keys, make_client({}, transport))
        async with listening(Head(ServerSettings(), context, registry, RunConfig((), {}))) as hosted:
            yield hosted, registry


async def test_a_server_that_is_not_in_the_config_cannot_join() -> None:
    async with listening_head() as (head, registry), http_transport() as transport:
        registry_client = RegistryClient(transport, head.url, KEYS)
        hosted = HostedServer(make_server("unknown"), bind("127.0.0.1", 0))
        failure = await failure_of(hosted.join("unknown#1", registry_client, AddressBook(registry_client.directory)))
        await hosted.stop()
        assert failure.kind is FailureKind.UNKNOWN_SERVER and failure.problem.server == "head"
        assert registry.instances() == []


async def test_an_invalid_directory_from_the_head_is_a_failure() -> None:
    server = make_server("head")

    @server.app.get("/directory")
    async def directory() -> dict[str, int]:
        return {"hello": 1}

    async with listening(server) as hosted, http_transport() as transport:
        failure = await failure_of(RegistryClient(transport, hosted.url, KEYS).directory())
    assert failure.kind is FailureKind.MALFORMED_ANSWER
