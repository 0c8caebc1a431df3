"""A process that is too busy to serve its sockets: event-loop lag must not fail requests or restart servers."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from rollyard.records.errors import FailureKind
from rollyard.services.http.client import RetryPolicy, Session
from rollyard.services.http.connection_pool import CallbackBudget
from rollyard.services.http.request import Receive, Scope, Send
from rollyard.services.http.transport import LocalTransport
from tests.support.fixtures import failure_kind_of, http, http_transport, make_client, peer, send
from tests.support.waiting import deadline_s, until
from tests.unit.services.http.raw_peers import respond, tcp_server


async def test_a_response_that_arrived_while_the_loop_was_blocked_is_not_a_timeout() -> None:
    async with http_transport() as transport, peer(http(b"on time")) as other:
        await send(transport, other.url + "/x")  # starts the measurement of the lag
        sending = asyncio.create_task(send(transport, other.url + "/x", timeout_s=0.3))
        await until(lambda: other.requests == 2)
        time.sleep(0.6)
        assert (await sending).body == b"on time"


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_request_without_a_response_still_times_out(streamed: bool) -> None:
    async with http_transport() as transport, tcp_server(respond(b"", close=False)) as port:
        url = f"http://127.0.0.1:{port}/x"
        work = transport.stream("POST", url, b"", {}, 0.1) if streamed else send(transport, url, timeout_s=0.1)
        async with asyncio.timeout(deadline_s()):
            assert await failure_kind_of(work) is FailureKind.TIMEOUT


async def test_the_lag_of_this_process_does_not_time_out_a_local_call() -> None:
    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.05)
        time.sleep(0.5)
        await asyncio.sleep(0.05)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async with http_transport() as remote:
        transport = LocalTransport(remote)
        transport.mount("http://local:1", slow)
        assert (await send(transport, "http://local:1/x", timeout_s=0.4)).body == b"done"
        await transport.close()


async def test_the_budget_limits_callbacks_per_loop_iteration_and_keeps_their_order() -> None:
    budget, called = CallbackBudget(2), list[int]()
    for number in range(5):
        budget.run(called.append, number)
    seen = [list(called)]
    for _ in range(4):
        await asyncio.sleep(0)
        seen.append(list(called))
    assert seen[0] == [0, 1] and [0, 1, 2, 3] in seen and called == [0, 1, 2, 3, 4]
    budget.run(called.append, 5)
    assert called[-1] == 5


async def test_a_session_survives_an_instance_that_is_too_busy_to_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.services.http.transport.CONNECT_TIMEOUT_S", 0.1)
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    waiting = [socket.socket() for _ in range(3)]
    for client in waiting:
        client.setblocking(False)
        client.connect_ex(sock.getsockname())
    async with http_transport() as transport:
        session = Session(make_client({"s": [url]}, transport, RetryPolicy(0.05, 0.01)), "s")
        session._url = url
        calling = asyncio.create_task(session.send("/x", b"{}", deadline_s()))
        await asyncio.sleep(0.5)
        assert not calling.done()
        sock.setblocking(False)
        for client in waiting:
            client.close()

        async def respond_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = await reader.readuntil(b"\r\n\r\n")
            request_id = next(line for line in head.split(b"\r\n") if line.startswith(b"x-rollyard-request"))
            writer.write(http(b"{}").replace(b"\r\n", b"\r\n" + request_id + b"\r\n", 1))
            await reader.read()
            writer.close()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await respond_once(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(connected, sock=sock)
        assert (await calling).status == 200
        server.close()


async def test_a_session_whose_first_response_is_lost_may_be_open_and_keeps_its_instance() -> None:
    async with peer(None, http()) as first, peer(http()) as second, http_transport() as transport:
        session = Session(make_client({"s": [first.url, second.url]}, transport), "s")
        session._client._rotation = 1  # the first instance is next in the rotation
        assert not session.may_be_open
        assert await failure_kind_of(session.send("/seed_session", b"{}", deadline_s())) is FailureKind.CONNECTION_LOST
        assert session.may_be_open and not session.opened
        assert (await session.send("/close", b"{}", deadline_s())).status == 200
        assert (first.requests, second.requests) == (2, 0)
