"""The plain HTTP connections of the transport: all framings of a response, and when a connection is reused."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest
import uvicorn

from rollyard.records.errors import Failure
from rollyard.services.http.connection_pool import REQUEST_HEADER, RUN_LIMITS, ConnectionPool, Dialer, target_of
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.transport import OTHER_KEEPALIVE_S, RUN_HEADER
from tests.support.fixtures import http, http_transport, peer, send
from tests.support.waiting import deadline_s, until

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nx-trailer: 1\r\n\r\n"
)
FRAMINGS = {
    "chunked": (CHUNKED, b"hello world"),
    "interim responses first": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + http(b"hello world"),
        b"hello world",
    ),
    "gzip": (http(gzip.compress(b"hello"), "200 OK", None, "content-encoding: gzip"), b"hello"),
    "deflate": (http(zlib.compress(b"hello"), "200 OK", None, "Content-Encoding: Deflate"), b"hello"),
    "no body": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "large": (http(b"x" * 5_000_000), b"x" * 5_000_000),
}


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_response_of_any_framing_is_complete_and_its_connection_is_reused(framing: str) -> None:
    response, body = FRAMINGS[framing]
    async with peer(response) as other, http_transport() as transport:
        for _ in range(2):
            assert (await send(transport, other.url + "/x")).body == body
        assert other.connections == 1


async def test_a_body_without_a_length_ends_with_its_connection() -> None:
    async with peer(b"HTTP/1.1 200 OK\r\nx-it: y\r\n\r\nhello", None) as other, http_transport() as transport:
        sending = asyncio.ensure_future(send(transport, other.url + "/x"))
        await until(lambda: other.requests)
        await asyncio.sleep(0.01)
        other.close()
        response = await sending
        assert (response.status, response.body, response.headers["X-It"]) == (200, b"hello", "y")


STRAY = http(b"{}") + http(b"stray")


@pytest.mark.parametrize(
    "response", [http(b"{}", "200 OK", None, "connection: close"), b"HTTP/1.0 204 No Content\r\n\r\n", STRAY]
)
async def test_a_connection_is_not_reused_if_the_peer_will_close_it_or_sent_more_than_its_response(
    response: bytes,
) -> None:
    async with peer(response) as other, http_transport() as transport:
        assert {(await send(transport, other.url + "/x")).body for _ in range(2)} <= {b"", b"{}"}
        assert other.connections == 2


async def test_concurrent_requests_use_separate_connections_that_are_reused() -> None:
    async with peer(http(b"1")) as other, http_transport() as transport:
        await asyncio.gather(*(send(transport, other.url + "/x") for _ in range(20)))
        assert other.connections <= 20
        await asyncio.gather(*(send(transport, other.url + "/x") for _ in range(20)))
        assert (other.requests, other.connections <= 20) == (40, True)


async def test_a_connection_beyond_the_limit_replaces_an_idle_one_but_never_one_in_use() -> None:
    lag = LoopLag()
    pool = ConnectionPool(60.0, 60.0, Dialer(deadline_s(), lag), RUN_LIMITS, lag, max_open=3)
    async with peer(http(b"1")) as first, peer(http(b"2")) as second:

        async def post(url: str, count: int) -> None:
            target = target_of(url + "/x")
            assert target is not None
            await asyncio.gather(*(pool.send("POST", target, b"{}", {}, deadline_s()) for _ in range(count)))

        await post(first.url, 3)
        await post(second.url, 1)
        await post(first.url, 3)
        assert (first.connections, second.connections) == (4, 1)
        await post(first.url, 5)
        assert first.requests == 11
    pool.close()


async def test_a_request_that_is_not_due_soon_has_a_deadline_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.services.http.connection_pool.SWEEP_S", 0.01)
    async with peer(b"") as other, http_transport() as transport:
        with pytest.raises(Failure, match=r"did not respond within 0\.1 s"):
            await transport.send("POST", other.url + "/x", b"{}", {}, 0.1)


async def test_an_idle_connection_is_closed_without_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.services.http.connection_pool.SWEEP_S", 0.01)
    monkeypatch.setattr("rollyard.services.http.transport.OTHER_KEEPALIVE_S", 0.0)
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(http(b"1"))
        assert await reader.read() == b""
        closed.set()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener, http_transport() as transport:
        await send(transport, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/x")
        await asyncio.wait_for(closed.wait(), deadline_s())


@pytest.mark.parametrize("rollyard", [False, True])
async def test_only_a_connection_to_a_server_of_rollyard_is_reused_after_a_longer_pause(
    rollyard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollyard.services.http.transport.OTHER_KEEPALIVE_S", 0.0)
    responses = [http(b"{}", "200 OK", "r1", f"{REQUEST_HEADER}: {number}") for number in (1, 2)]
    async with (
        peer(*(responses if rollyard else [http(b"{}", "200 OK", None)])) as other,
        http_transport() as transport,
    ):
        for _ in range(2):
            await transport.send("POST", other.url + "/x", b"", {RUN_HEADER: "r1"}, deadline_s())
            await asyncio.sleep(0.002)
        assert other.connections == (1 if rollyard else 2)


def test_connections_are_given_up_before_uvicorn_closes_them() -> None:
    assert uvicorn.Config("app").timeout_keep_alive > OTHER_KEEPALIVE_S


async def test_a_connection_that_the_peer_closed_while_idle_is_not_reused() -> None:
    async with peer(http()) as other, http_transport() as transport:
        await send(transport, other.url + "/x")
        other.close()
        await asyncio.sleep(0.02)
        assert (await send(transport, other.url + "/x")).status == 200


async def test_a_cancelled_request_closes_its_connection_so_that_the_peer_notices() -> None:
    disconnected = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        await reader.read(1)
        disconnected.set()
        writer.close()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with http_transport() as transport:
        sending = asyncio.create_task(send(transport, f"http://127.0.0.1:{port}/x"))
        await asyncio.sleep(0.02)
        sending.cancel()
        await asyncio.wait_for(disconnected.wait(), deadline_s())
    listener.close()


async def test_a_request_has_its_host_length_query_and_headers() -> None:
    async with peer(http()) as other, http_transport() as transport:
        await send(transport, other.url + "/a%20b?q=1&r=%20", b"four", headers={"X-It": "y"})
        await send(transport, other.url, b"", "GET")
    post, get = other.seen
    assert post.startswith(b"POST /a%20b?q=1&r=%20 HTTP/1.1\r\n")
    host = other.url.removeprefix("http://").encode()
    for line in (b"Host: " + host, b"Content-Length: 4", b"X-It: y"):
        assert b"\r\n" + line + b"\r\n" in post
    assert post.endswith(b"\r\n\r\nfour")
    assert get.startswith(b"GET / HTTP/1.1\r\n")
    assert b"ontent-" not in get


def test_the_pool_accepts_addresses_without_credentials() -> None:
    secure = target_of("https://host/x")
    assert secure is not None and secure.peer == ("host", 443, True)
    assert target_of("http://user:word@host/x") is None
    ipv6 = target_of("http://[::1]:80/x")
    assert ipv6 is not None
    assert (ipv6.host, ipv6.port, ipv6.host_header, ipv6.request_target) == ("::1", 80, "[::1]:80", "/x")
