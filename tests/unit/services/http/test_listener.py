"""Slow, hostile or many clients: a server limits the resources of each and explains its refusals."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rollyard.records.errors import FailureKind
from rollyard.records.run_types import Keys
from rollyard.services.http.client import RUN_HEADER
from rollyard.services.http.connection_pool import HttpLimits
from rollyard.services.http.listener import ListenerLimits, bind
from rollyard.services.http.listener import listening as listening_of_other_apps
from rollyard.services.http.request import RawRequest, Receive, Scope, Send
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.hosting import HostedServer
from tests.support.fixtures import KEYS, failure_of, http_transport, listening, make_client, make_server, peer, send
from tests.support.waiting import deadline_s, until
from tests.unit.services.http.raw_peers import exchange

SMALL = ListenerLimits(HttpLimits(header_bytes=16 * 1024, headers=50, body_bytes=256 * 1024), bodies_bytes=400 * 1024)
STRICT_TIMES = ListenerLimits(head_s=0.2, body_grace_s=0.2, body_bytes_per_s=1e6)
REQUEST_START = b"POST /echo HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
UPGRADE_START = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: rollyard-channel\r\n"
FILL = b"x" * 100_000


@contextlib.asynccontextmanager
async def length_server(bounds: ListenerLimits, keys: Keys = KEYS) -> AsyncIterator[HostedServer]:
    async def body_length(call: RawRequest) -> bytes:
        return b"%d" % len(call.body)

    hosted = HostedServer(make_server(keys=keys, routes={"/echo": body_length}), bind("127.0.0.1", 0), bounds=bounds)
    await hosted.listen()
    try:
        yield hosted
    finally:
        await hosted.stop()


def port_of(hosted: HostedServer) -> int:
    return int(hosted.url.rpartition(":")[2])


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (REQUEST_START + b"x: " + FILL + b"\r\n\r\n", b"431"),
        (REQUEST_START + b"x: " + FILL * 20, b"431"),
        (REQUEST_START + b"x: y\r\n" * 100 + b"\r\n", b"431"),
        (REQUEST_START + (b"x: " + FILL[:1000] + b"\r\n") * 30 + b"\r\n", b"431"),
        (b"POST /" + FILL * 20, b"431"),
        (REQUEST_START + b"content-length: 300000\r\n\r\n" + FILL, b"413"),
        (REQUEST_START + b"transfer-encoding: chunked\r\n\r\n" + (b"186a0\r\n" + FILL + b"\r\n") * 3, b"413"),
        (REQUEST_START + b"transfer-encoding: chunked\r\n\r\n0\r\nx: " + FILL * 20, b"431"),
        (REQUEST_START + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab", b"400"),
        (REQUEST_START + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", b"400"),
        (b"nonsense\r\n\r\n", b"400"),
        (UPGRADE_START + b"x: " + FILL[:20_000] + b"\r\n\r\n", b"431"),
    ],
)
async def test_a_request_beyond_the_limits_is_rejected_with_a_message_and_its_connection_closed(
    request_: bytes, status: bytes
) -> None:
    async with length_server(SMALL) as hosted:
        response = await exchange(port_of(hosted), request_)
        assert response.split()[1] == status and b'"detail":"' in response


async def test_the_limits_hold_for_the_viewer_and_for_environments_that_are_served_to_others() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the request should not have arrived")

    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        async with listening_of_other_apps(app, sock, lifespan="off", timeout_graceful_shutdown=1):
            response = await exchange(port, REQUEST_START + (b"x: " + FILL[:1000] + b"\r\n") * 1000)
        assert response.split()[1] == b"431" and b'"detail":"' in response


async def test_a_client_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with length_server(SMALL) as hosted:
        hosted._connections.lag.now = lambda: 7.0  # type: ignore[method-assign]
        for _ in range(20):
            await exchange(port_of(hosted), b"nonsense\r\n\r\n")
        hosted._connections.lag.now = lambda: 9.0  # type: ignore[method-assign]
        await exchange(port_of(hosted), b"nonsense\r\n\r\n")
    first, second = (message for message in caplog.messages if "refused a request" in message)
    assert "more since" not in first and "19 more since" in second


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n"


async def test_a_protocol_upgrade_offer_is_ignored() -> None:
    plain = REQUEST_START + b"connection: close\r\ncontent-length: 3\r\n\r\nabc"
    for body in (b"content-length: 3\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"):
        async with length_server(SMALL) as hosted:
            response = await exchange(port_of(hosted), REQUEST_START + OFFER + body + plain)
        assert response.count(b" 200 OK") == 2 and response.count(b"\r\n\r\n3") == 2


async def test_a_body_after_an_upgrade_offer_is_never_parsed_as_a_request() -> None:
    hidden = REQUEST_START + b"content-length: 1\r\n\r\nx"
    async with length_server(SMALL) as hosted:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(hosted))
        writer.write(REQUEST_START + OFFER + b"content-length: %d\r\n\r\n" % len(hidden))
        await until(lambda: any(connection.cycle for connection in hosted._connections.connections))
        writer.write(hidden)
        assert b"\r\n\r\n%d" % len(hidden) in await reader.read(1000)
        writer.close()


async def test_the_total_size_of_bodies_in_flight_is_limited() -> None:
    async with length_server(SMALL) as hosted, http_transport() as transport:
        held = await asyncio.open_connection("127.0.0.1", port_of(hosted))
        held[1].write(REQUEST_START + b"content-length: 250000\r\n\r\n" + FILL * 2)
        await until(lambda: hosted._connections.held_bytes == 200_000)
        assert (await send(transport, hosted.url + "/echo", b"x" * 250_000)).status == 503
        assert (await send(transport, hosted.url + "/echo", b"x" * 100_000)).body == b"100000"
        held[1].close()
        await until(lambda: hosted._connections.held_bytes == 0)
        assert (await send(transport, hosted.url + "/echo", b"x" * 250_000)).body == b"250000"


async def test_the_body_of_a_request_that_is_already_refused_takes_nothing_from_others() -> None:
    keys = KEYS.model_copy(update={"token": "token-of-the-run"})
    async with length_server(SMALL, keys) as hosted, http_transport() as transport:
        writers = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(hosted))
            writer.write(REQUEST_START + b"content-length: 250000\r\n\r\n")
            assert b" 401 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(FILL * 2)
            await writer.drain()
            writers.append(writer)
        for _ in range(3):
            answer = await send(
                transport, hosted.url + "/echo", FILL * 2, headers={"authorization": f"Bearer {keys.token}"}
            )
            assert answer.status == 200, answer.body
        assert not hosted._connections.held_bytes
        for writer in writers:
            writer.close()


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of connections are checked every 20 ms instead of every second."""
    monkeypatch.setattr("rollyard.services.http.listener.CHECK_EVERY_S", 0.02)


@pytest.mark.usefixtures("frequent_checks")
@pytest.mark.parametrize(
    "start", [b"", b"POST /e", b"\r\n", REQUEST_START, REQUEST_START + b"content-length: 9\r\n\r\n123"]
)
async def test_a_request_that_is_not_complete_in_time_is_closed(start: bytes) -> None:
    async with length_server(STRICT_TIMES) as hosted:
        async with asyncio.timeout(deadline_s()):
            await exchange(port_of(hosted), start)


@pytest.mark.usefixtures("frequent_checks")
async def test_a_kept_alive_connection_that_sends_too_slowly_is_closed() -> None:
    async with length_server(STRICT_TIMES) as hosted:
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(hosted))
        writer.write(REQUEST_START + b"content-length: 0\r\n\r\n")
        await until(lambda: hosted.server.requests)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(deadline_s()):
                while hosted._connections.connections:
                    writer.write(b"\r\n")
                    await asyncio.sleep(0.05)
        assert not hosted._connections.connections
        writer.close()


@pytest.mark.usefixtures("frequent_checks")
async def test_the_time_limits_do_not_apply_to_a_running_handler() -> None:
    release = asyncio.Event()

    async def blocked(call: RawRequest) -> bytes:
        await release.wait()
        return b"{}"

    hosted = HostedServer(make_server(routes={"/w": blocked}), bind("127.0.0.1", 0), bounds=STRICT_TIMES)
    await hosted.listen()
    async with http_transport() as transport:
        waiting = asyncio.create_task(send(transport, hosted.url + "/w"))
        await until(lambda: hosted.server.requests)
        await asyncio.sleep(0.5)  # longer than a request may take to arrive
        release.set()
        assert (await waiting).status == 200
    await hosted.stop()


async def test_a_response_to_another_request_is_never_accepted() -> None:
    def response_to(number: int, body: bytes) -> bytes:
        head = f"HTTP/1.1 200 OK\r\n{RUN_HEADER}: {KEYS.run_id}\r\nx-rollyard-request: {number:x}\r\n"
        return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body

    # The second response repeats the id of the first request.
    async with peer(response_to(1, b"one"), response_to(1, b"one"), response_to(3, b"three"), raw=True) as other:
        transport = HttpTransport()
        client = make_client({"s": [other.url]}, transport)
        assert (await client.post("s", "/x", b"{}", deadline_s())).body == b"one"
        assert (await failure_of(client.post("s", "/x", b"{}", deadline_s()))).kind is FailureKind.CONNECTION_LOST
        assert (await client.post("s", "/x", b"{}", deadline_s())).body == b"three"
        assert other.connections == 2
        await transport.close()


async def test_many_connections_are_accepted_in_few_iterations_of_the_loop() -> None:
    async with length_server(ListenerLimits()) as hosted:
        writers = [(await asyncio.open_connection("127.0.0.1", port_of(hosted)))[1] for _ in range(300)]
        iterations = 0
        while len(hosted._connections.connections) < 300:
            iterations += 1
            await asyncio.sleep(0)
        assert iterations < 300
        for writer in writers:
            writer.close()


async def test_health_checks_overtake_requests_that_wait_for_the_budget() -> None:
    started: list[int] = []
    started_before_health: list[int] = []

    async def work(call: RawRequest) -> bytes:
        started.append(1)
        return b"{}"

    async with listening(make_server(routes={"/w": work})) as hosted, http_transport() as transport:
        budget = hosted._connections.budget
        budget._used = 10**9  # this iteration of the loop has no budget left

        async def health() -> None:
            await send(transport, hosted.url + "/health", b"", "GET")
            started_before_health.append(len(started))

        waiting = [asyncio.create_task(send(transport, hosted.url + "/w")) for _ in range(5)]
        await until(lambda: len(budget._waiting) == 5)
        await health()
        assert started_before_health == [0]
        budget._next_iteration()
        await asyncio.gather(*waiting)
