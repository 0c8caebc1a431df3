"""Channels: any number of requests between two processes share one connection, and each ends as it would over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise

import pytest

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Keys
from rollyard.services.http.channel import (
    FRAME,
    MAX_COMMON_BYTES,
    MAX_REQUEST_BYTES,
    MAX_RESPONSE_BYTES,
    REQUEST,
    RESPONSE,
    UPGRADE,
    Channel,
    FrameReader,
    ServedChannel,
    _common_head,
    _common_lines,
    _shared_head,
)
from rollyard.services.http.client import ServerClient
from rollyard.services.http.connection_pool import PER_ITERATION, InvalidResponse
from rollyard.services.http.listener import ListenerLimits, bind
from rollyard.services.http.request import Handler, RawRequest, RawResponse, SentHeaders
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.hosting import HostedServer
from tests.support.fixtures import (
    KEYS,
    failure_kind_of,
    failure_of,
    http,
    http_transport,
    make_client,
    make_server,
    peer,
    unused_url,
)
from tests.support.waiting import until

WAIT_S = 120.0
MEGA = 1 << 20


class Handlers:
    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.go_on = asyncio.Event()

    async def echo(self, call: RawRequest) -> bytes:
        return call.body

    async def wait(self, call: RawRequest) -> bytes:
        self.begun.append(call.body)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(call.body)
            raise
        return call.body

    async def torn(self, call: RawRequest) -> RawResponse:
        return RawResponse(b"{}", headers=((b"x-a", b"1\r\nx-b: 2"),))

    async def cookie(self, call: RawRequest) -> RawResponse:
        return RawResponse(b"{}", headers=((b"set-cookie", b"session=%b" % call.body),))

    async def long(self, call: RawRequest) -> RawResponse:
        return RawResponse(b"{}", headers=((b"x-long", call.body * MAX_COMMON_BYTES),))

    async def traced(self, call: RawRequest) -> bytes:
        return b" ".join(call.headers[name] for name in (b"cookie", b"traceparent", b"tracestate", b"x-last"))

    async def stream_later(self, call: RawRequest) -> RawResponse:
        await self.wait(call)
        return RawResponse(stream=self.recorded())

    async def recorded(self) -> AsyncIterator[bytes]:
        self.begun.append(b"stream")
        yield b""

    async def path(self, call: RawRequest) -> bytes:
        return call.path.encode()

    async def huge(self, call: RawRequest) -> bytes:
        return bytes(MAX_RESPONSE_BYTES)

    async def mega(self, call: RawRequest) -> bytes:
        return bytes(MEGA)

    async def stream(self, call: RawRequest) -> RawResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"bc"

        return RawResponse(stream=pieces(), headers=((b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")))


@contextlib.asynccontextmanager
async def served(
    handlers: Handlers, bounds: ListenerLimits | None = None, keys: Keys = KEYS, port: int = 0
) -> AsyncIterator[HostedServer]:
    routes: dict[str, Handler] = {
        "/echo": handlers.echo,
        "/torn": handlers.torn,
        "/huge": handlers.huge,
        "/mega": handlers.mega,
        "/later": handlers.stream_later,
        "/a b": handlers.path,
        "/cookie": handlers.cookie,
        "/long": handlers.long,
        "/traced": handlers.traced,
        "/stream": handlers.stream,
        "/work": handlers.wait,
    }
    server = make_server("env", keys=keys, routes=routes, cancellable={"/wait": handlers.wait})
    hosted = HostedServer(server, bind("127.0.0.1", port), bounds=bounds)
    await hosted.listen()
    try:
        yield hosted
    finally:
        await hosted.stop()


async def opened(transport: HttpTransport, client: ServerClient) -> Channel:
    """The channel of the only server, which the client opens for its first request."""
    await client.post("env", "/echo", b"{}", WAIT_S)
    [channel] = transport._channels._channels.values()
    return channel


client_of = partial(make_client, channels=True)
"""A client whose directory says that the servers accept channels."""


def open_sockets(hosted: HostedServer) -> int:
    return len(hosted._listener.server_state.connections)


async def test_requests_in_flight_share_one_connection_and_get_their_own_responses() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        await opened(transport, client)
        sent = [b"%d" % number for number in range(200)]
        waiting = [asyncio.create_task(client.post("env", "/wait", body, WAIT_S)) for body in sent]
        await until(lambda: len(handlers.begun) == len(sent))
        quick = [(await client.post("env", "/echo", body, WAIT_S)).body for body in sent[:3]]
        assert quick == sent[:3]
        assert open_sockets(hosted) == 1
        handlers.go_on.set()
        assert [(await one).body for one in waiting] == sent


async def test_first_requests_that_are_sent_at_once_share_one_connection() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        waiting = [asyncio.create_task(client.post("env", "/wait", b"%d" % number, WAIT_S)) for number in range(200)]
        await until(lambda: len(handlers.begun) == 200)
        assert open_sockets(hosted) == 1
        handlers.go_on.set()
        assert [(await one).body for one in waiting] == [b"%d" % number for number in range(200)]


async def test_a_request_waits_for_the_channel_after_the_one_that_opens_it_was_cancelled() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        first, second = (asyncio.create_task(client.post("env", "/echo", b"%d" % one, WAIT_S)) for one in (1, 2))
        while not transport._channels._opening:
            await asyncio.sleep(0)
        first.cancel()
        assert (await second).body == b"2"
        assert first.cancelled() and open_sockets(hosted) == 1


async def test_a_server_that_accepts_no_channels_sees_plain_http() -> None:
    async with peer(http()) as other, http_transport() as transport:
        await make_client({"env": [other.url]}, transport).post("env", "/echo", b"{}", WAIT_S)
        assert [sent.split()[0] for sent in other.seen] == [b"POST"]


@pytest.mark.parametrize("answer", [http(), b"HTTP/1.1 404 No\r\n\r\n", b"HTTP/1.1 101 Yes\r\n\r\n", None])
async def test_a_peer_that_refuses_a_channel_gets_all_requests_over_http_and_is_not_asked_again(
    answer: bytes | None,
) -> None:
    async with peer(answer, http()) as other, http_transport() as transport:
        client = client_of({"env": [other.url]}, transport)
        await asyncio.gather(*(client.post("env", "/echo", b"{}", WAIT_S) for _ in range(5)))
        await client.post("env", "/echo", b"{}", WAIT_S)
        assert [sent.split()[0] for sent in other.seen] == [b"GET", *[b"POST"] * 6]


async def test_a_peer_that_ignores_an_upgrade_gets_the_requests_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.services.http.channel.OPEN_S", 0.05)
    async with peer(b"", http()) as other, http_transport() as transport:
        client = client_of({"env": [other.url]}, transport)
        await client.post("env", "/echo", b"{}", WAIT_S)
        assert [sent.split()[0] for sent in other.seen] == [b"GET", b"POST"]


async def test_the_deadline_of_a_call_holds_while_the_upgrade_has_no_response() -> None:
    async with peer(b"") as other, http_transport() as transport:
        client = client_of({"env": [other.url]}, transport)
        calls = [asyncio.create_task(failure_kind_of(client.post("env", "/echo", b"{}", 0.1))) for _ in range(3)]
        assert {await one for one in calls} == {FailureKind.UNREACHABLE}
        assert [sent.split()[0] for sent in other.seen] == [b"GET"]


async def test_a_busy_server_that_had_a_channel_gets_no_connection_for_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        before = await opened(transport, client)
        hosted._connections.stop()  # the kernel still accepts connections, which nothing reads
        before.abort()
        monkeypatch.setattr("rollyard.services.http.channel.OPEN_S", 0.05)
        calls = [asyncio.create_task(failure_of(client.post("env", "/echo", b"{}", 0.2))) for _ in range(5)]
        assert {(await one).kind for one in calls} == {FailureKind.UNREACHABLE}
        assert not transport._pool._open


async def test_a_server_that_starts_after_it_was_unreachable_gets_a_channel() -> None:
    url = unused_url()
    async with http_transport() as transport:
        client = client_of({"env": [url]}, transport)
        calls = [asyncio.create_task(failure_kind_of(client.post("env", "/echo", b"{}", 0.05))) for _ in range(5)]
        assert {await one for one in calls} == {FailureKind.UNREACHABLE}
        async with served(Handlers(), port=int(url.rpartition(":")[2])):
            assert not (await opened(transport, client)).closed


async def test_calls_that_wait_for_a_channel_fail_when_the_client_closes() -> None:
    async with peer(b"") as other:
        transport = HttpTransport()
        call = asyncio.create_task(
            failure_kind_of(client_of({"env": [other.url]}, transport).post("env", "/echo", b"{}", 0.5))
        )
        await until(lambda: other.requests == 1)
        await transport.close()
        assert await call is FailureKind.UNREACHABLE


async def test_a_response_with_a_stream_and_cookies_arrives_whole() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        await opened(transport, client)
        response = await client.post("env", "/stream", b"{}", WAIT_S)
        assert response.body == b"abc" and response.cookies == ("a=1", "b=2")
        assert response.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("size", [MAX_REQUEST_BYTES - 10, MAX_REQUEST_BYTES + 1, 5_000_000])
async def test_a_large_request_and_its_response_arrive(size: int) -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        await opened(transport, client)
        body = b"x" * size
        assert (await client.post("env", "/echo", body, WAIT_S)).body == body


@pytest.mark.parametrize(("path", "ends"), [("/wait", True), ("/work", False)])
async def test_a_cancelled_call_ends_the_work_that_may_be_cancelled_and_nothing_else(path: str, ends: bool) -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        await opened(transport, client)
        calls = [asyncio.create_task(client.post("env", path, body, WAIT_S)) for body in (b"a", b"b")]
        await until(lambda: len(handlers.begun) == 2)
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        if ends:
            await until(lambda: handlers.cancelled == [b"a"])
        else:
            await client.post("env", "/echo", b"after the cancellation", WAIT_S)
        handlers.go_on.set()
        assert (await calls[1]).body == b"b" and handlers.cancelled == [b"a"] * ends


async def test_a_call_that_takes_too_long_fails_alone_while_the_server_answers_others() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        channel = await opened(transport, client)
        late = asyncio.create_task(failure_kind_of(client.post("env", "/wait", b"late", 0.3)))
        other = asyncio.create_task(client.post("env", "/wait", b"other", WAIT_S))
        await until(lambda: len(handlers.begun) == 2)
        while not late.done():
            await client.post("env", "/echo", b"", WAIT_S)
        assert await late is FailureKind.TIMEOUT and not channel.closed
        await until(lambda: handlers.cancelled == [b"late"])
        handlers.go_on.set()
        assert (await other).body == b"other"


async def test_a_call_that_takes_too_long_fails_alone_while_the_server_answers_nothing() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        await opened(transport, client)
        patient = asyncio.create_task(client.post("env", "/work", b"patient", WAIT_S))
        assert await failure_kind_of(client.post("env", "/work", b"late", 0.05)) is FailureKind.TIMEOUT
        handlers.go_on.set()
        assert (await patient).body == b"patient"


async def test_another_channel_replaces_a_silent_one_whose_calls_still_end(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        silent = await opened(transport, client)
        call = asyncio.create_task(client.post("env", "/wait", b"on the silent one", WAIT_S))
        await until(lambda: len(handlers.begun) == 1)
        with monkeypatch.context() as patched:
            patched.setattr("rollyard.services.http.channel.SILENT_S", 0.0)
            await client.post("env", "/echo", b"on the other one", WAIT_S)
        assert not silent.closed
        handlers.go_on.set()
        assert (await call).body == b"on the silent one"
        assert silent.closed and (await opened(transport, client)) is not silent


async def test_the_end_of_the_connection_fails_every_call_in_flight_and_the_next_one_opens_another() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        first = await opened(transport, client)
        calls = [asyncio.create_task(failure_kind_of(client.post("env", "/wait", b"{}", WAIT_S))) for _ in range(5)]
        await until(lambda: len(handlers.begun) == 5)
        first.abort()
        assert {await one for one in calls} == {FailureKind.CONNECTION_LOST}
        await until(lambda: len(handlers.cancelled) == 5)
        assert await opened(transport, client) is not first


async def test_a_process_does_other_work_between_the_calls_that_fail_as_a_connection_ends() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        channel = await opened(transport, client)
        sends = [client.post("env", "/wait", b"{}", WAIT_S) for _ in range(8 * PER_ITERATION)]
        calls = [asyncio.create_task(failure_kind_of(one)) for one in sends]
        await until(lambda: len(handlers.begun) == len(calls))
        channel.abort()
        ended = [(0, 0)]
        async with asyncio.timeout(WAIT_S):
            while ended[-1] != (len(calls), len(calls)):
                ended.append((sum(call.done() for call in calls), len(handlers.cancelled)))
                await asyncio.sleep(0)
    assert max(now - before for side in zip(*ended, strict=True) for before, now in pairwise(side)) <= PER_ITERATION


async def test_a_server_reads_no_more_requests_of_a_client_that_does_not_read_its_responses() -> None:
    upgrade = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % UPGRADE
    requests = [FRAME.pack(7, at, REQUEST, 0, 7) + b"/mega\r\n" for at in range(40)]
    async with served(Handlers()) as hosted:
        port = int(hosted.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(upgrade + b"".join(requests[1:]))
        connections = hosted._listener.server_state.connections
        await until(lambda: any(isinstance(one, ServedChannel) for one in connections))
        (channel,) = (one for one in connections if isinstance(one, ServedChannel))
        await until(lambda: not channel._transport.is_reading())
        writer.write(requests[0])
        await reader.readexactly(len(requests) * MEGA)
        assert channel._transport.is_reading()
        writer.close()


async def test_a_stopping_server_answers_what_is_in_flight() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        channel = await opened(transport, client)
        call = asyncio.create_task(client.post("env", "/wait", b"last", WAIT_S))
        await until(lambda: handlers.begun == [b"last"])
        stopping = asyncio.create_task(hosted.stop())
        await until(lambda: hosted._listener.should_exit)
        handlers.go_on.set()
        assert (await call).body == b"last"
        await stopping
        assert channel.closed


@pytest.mark.parametrize("path", ["/torn", "/huge"])
async def test_a_response_that_cannot_be_sent_fails_its_call_alone(path: str) -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        channel = await opened(transport, client)
        other = asyncio.create_task(client.post("env", "/wait", b"other", WAIT_S))
        await until(lambda: handlers.begun == [b"other"])
        assert await failure_kind_of(client.post("env", path, b"{}", WAIT_S)) is FailureKind.CONNECTION_LOST
        handlers.go_on.set()
        assert (await other).body == b"other" and not channel.closed


async def test_a_response_that_arrived_in_time_is_returned_though_its_turn_comes_after_the_deadline() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        channel = await opened(transport, client_of({"env": [hosted.url]}, transport))
        call = asyncio.create_task(channel.send("/wait", SentHeaders(), b"{}", WAIT_S))
        await until(lambda: len(channel._calls) == 1)
        for _ in range(PER_ITERATION):
            channel._budget.run(lambda: None)
        channel.on_frame(max(channel._calls), RESPONSE, 200, b"", b"arrived")
        [deadline] = [one for one in channel._lag.timeouts if one._task is call]
        deadline._until = channel._lag.now()
        deadline._expire()
        response = await call
        assert response is not None and response.body == b"arrived"


@pytest.mark.parametrize("path", ["/cookie", "/long"])
async def test_no_cookie_and_no_long_head_is_kept_for_the_next_response(path: str) -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        channel = await opened(transport, client_of({"env": [hosted.url]}, transport))
        kept = [cache.cache_info().currsize for cache in (_common_head, _common_lines)]
        for body in (b"a", b"b"):
            response = await channel.send(path, SentHeaders(), body, WAIT_S)
            assert response is not None and body.decode() in "".join(response.headers.values())
        assert [cache.cache_info().currsize for cache in (_common_head, _common_lines)] == kept


async def test_the_calls_of_a_session_share_a_parsed_head_though_each_has_its_own_trace() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        channel = await opened(transport, client_of({"env": [hosted.url]}, transport))
        hits = _shared_head.cache_info().hits
        for trace in ("one", "two", "three"):
            own = {"cookie": "session", "traceparent": trace, "tracestate": "a=1", "x-last": "last"}
            response = await channel.send("/traced", SentHeaders(own), b"{}", WAIT_S)
            assert response is not None and response.body.decode() == f"session {trace} a=1 last"
        assert _shared_head.cache_info().hits == hits + 2


async def test_a_client_cannot_make_a_server_keep_long_heads() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        channel = await opened(transport, client_of({"env": [hosted.url]}, transport))
        kept = _shared_head.cache_info().currsize
        response = await channel.send("/echo", SentHeaders({"x-long": "x" * MAX_COMMON_BYTES}), b"y", WAIT_S)
        assert response is not None and response.body == b"y"
        assert _shared_head.cache_info().currsize == kept


async def test_calls_that_are_cancelled_before_the_server_begins_them_end() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        channel = await opened(transport, client_of({"env": [hosted.url]}, transport))
        headers = SentHeaders({"content-type": "application/json"})
        calls = [asyncio.create_task(channel.send("/wait", headers, b"{}", WAIT_S)) for _ in range(20 * PER_ITERATION)]
        await asyncio.sleep(0)  # all are sent at once, more than a server begins at once
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        await channel.send("/echo", headers, b"after them", WAIT_S)
        await until(lambda: hosted.server.in_flight == 0 and hosted._connections.held_bytes == 0)


async def test_a_connection_that_ends_before_a_request_begins_frees_its_bytes() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        await opened(transport, client_of({"env": [hosted.url]}, transport))
        [channel] = [one for one in hosted._listener.server_state.connections if isinstance(one, ServedChannel)]
        channel.on_frame(99, REQUEST, 0, b"/wait\r\n\r\n", b"{}")
        assert hosted._connections.held_bytes == 2
        channel.connection_lost(None)  # its task has not run yet
        await until(lambda: hosted._connections.held_bytes == 0)
        assert not hosted._listener.server_state.tasks


async def test_a_stream_does_not_begin_if_its_caller_no_longer_waits() -> None:
    handlers = Handlers()
    async with served(handlers) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        await opened(transport, client)
        call = asyncio.create_task(client.post("env", "/later", b"{}", WAIT_S))
        await until(lambda: handlers.begun == [b"{}"])
        call.cancel()
        await asyncio.wait([call])
        await client.post("env", "/echo", b"after the cancellation", WAIT_S)
        handlers.go_on.set()
        await until(lambda: hosted.server.in_flight == 0)
        assert handlers.begun == [b"{}"] and handlers.cancelled == []


async def test_a_path_is_decoded_as_over_http() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        over_http = (await client.post("env", "/a%20b", b"{}", WAIT_S)).body
        await opened(transport, client)
        assert (await client.post("env", "/a%20b", b"{}", WAIT_S)).body == over_http == b"/a b"


@pytest.mark.parametrize("line", ["Host: evil.example", "Origin: http://evil.example", "x-rollyard-run: another"])
async def test_an_upgrade_that_would_be_refused_as_a_request_opens_no_channel(line: str) -> None:
    async with served(Handlers()) as hosted:
        address = hosted.url.removeprefix("http://")
        lines = ["GET /health HTTP/1.1", "connection: upgrade", "upgrade: rollyard-channel", line]
        lines += [] if line.startswith("Host") else [f"Host: {address}"]
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write("\r\n".join([*lines, "", ""]).encode())
        assert (await reader.readline()).split()[1] in (b"403", b"421")
        writer.close()


async def test_a_path_without_a_hot_route_and_a_wrong_server_get_the_answers_of_http() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url], "other": [hosted.url]}, transport)
        await opened(transport, client)
        missing = await failure_of(client.post("env", "/none", b"{}", WAIT_S))
        wrong = await failure_of(client.post("other", "/echo", b"{}", WAIT_S))
        assert missing.problem.status == 404 and "/none" in missing.problem.detail
        assert wrong.kind is FailureKind.WRONG_RUN and "this is 'env', not 'other'" in wrong.problem.detail


async def test_a_caller_without_the_token_opens_no_channel() -> None:
    keys = KEYS.model_copy(update={"token": "t" * 32})
    async with served(Handlers(), keys=keys) as hosted, http_transport() as transport:
        allowed = client_of({"env": [hosted.url]}, transport, keys=keys)
        await opened(transport, allowed)
        refused = client_of({"env": [hosted.url]}, transport)
        assert await failure_kind_of(refused.post("env", "/echo", b"{}", WAIT_S)) is FailureKind.UNAUTHORIZED
    async with served(Handlers(), keys=keys) as hosted, http_transport() as transport:
        refused = client_of({"env": [hosted.url]}, transport)
        assert await failure_kind_of(refused.post("env", "/echo", b"{}", WAIT_S)) is FailureKind.UNAUTHORIZED
        await until(lambda: not transport._channels._opening)
        assert not transport._channels._channels


async def test_bodies_beyond_the_servers_limit_are_refused_as_over_http() -> None:
    handlers = Handlers()
    async with served(handlers, ListenerLimits(bodies_bytes=1000)) as hosted, http_transport() as transport:
        client = client_of({"env": [hosted.url]}, transport)
        await opened(transport, client)
        held = asyncio.create_task(client.post("env", "/wait", b"x" * 1001, WAIT_S))
        await until(lambda: len(handlers.begun) == 1)
        with pytest.raises(Failure) as refused:
            await client.post("env", "/echo", b"y", WAIT_S)
        assert "hold more than 1000 bytes" in refused.value.problem.detail
        handlers.go_on.set()
        await held
        assert (await client.post("env", "/echo", b"y", WAIT_S)).body == b"y"
        assert not (await opened(transport, client)).not_served  # a full server serves the path again later


async def test_a_post_without_a_hot_route_is_offered_to_the_channel_only_once() -> None:
    async with served(Handlers()) as hosted, http_transport() as transport:

        @hosted.server.app.post("/plain")
        async def plain() -> str:
            return "plain"

        client = client_of({"env": [hosted.url]}, transport)
        channel = await opened(transport, client)
        numbers = channel._numbers
        before = next(numbers)
        for _ in range(3):
            assert (await client.post("env", "/plain", b"{}", WAIT_S)).body == b'"plain"'
        assert next(numbers) == before + 2


@pytest.mark.parametrize("step", [1, 7, 16, 1000])
def test_frames_are_read_the_same_however_the_network_cuts_them(step: int) -> None:
    sent = [(number, bytes([65 + number]) * (number * 5), b"b" * (number * 11)) for number in range(8)]
    data = b"".join(FRAME.pack(len(h) + len(b), n, REQUEST, 0, len(h)) + h + b for n, h, b in sent)
    read: list[tuple[int, bytes, bytes]] = []
    reader = FrameReader(1000, lambda number, kind, status, head, body: read.append((number, head, body)))
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    assert read == sent


@pytest.mark.parametrize(("length", "head_length"), [(1001, 0), (10, 11)])
def test_a_frame_that_cannot_be_is_refused(length: int, head_length: int) -> None:
    reader = FrameReader(1000, lambda *_: None)
    with pytest.raises(InvalidResponse):
        reader.feed(FRAME.pack(length, 1, REQUEST, 0, head_length))
