"""Limits per client: what one client uses at once takes nothing from the others."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from rollyard.records.run_types import AccessRules, Keys, play_token
from rollyard.services.http.access import ESTABLISHED, Address, Peers, ProcNet, Socket
from rollyard.services.http.callers import Caller
from rollyard.services.http.connection_pool import HttpLimits
from rollyard.services.http.listener import ListenerLimits, bind
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpTransport
from rollyard.services.runtime.hosting import HostedServer
from tests.support.fixtures import make_client, make_server
from tests.support.waiting import deadline_s, until

TOKEN = "the-run-token-of-this-test"
PLAY = play_token(TOKEN)
GREEDY, OTHER = "127.0.0.2", "127.0.0.3"
RULES = AccessRules(client_requests=4, client_bytes=100_000)
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Users(ProcNet):
    """A socket table in which no address has a user, except those in `uids`."""

    uids: dict[str, int] = field(default_factory=dict)

    def find(self, local: Address, remote: Address) -> Socket | None:
        uid = self.uids.get(local[0])  # the client's end
        return None if uid is None else Socket(ESTABLISHED, uid, 7)

    def close(self) -> None:
        """Nothing to release."""


class LimitedServer:
    """A server whose route /wait responds once `release` is set, and its clients by their address."""

    def __init__(self, rules: AccessRules, **uids: int) -> None:
        self.keys = Keys(run_id="r1", secret="s", token=TOKEN, access=rules)
        self.release = asyncio.Event()
        routes = {"/wait": self._wait, "/echo": self._echo}
        server = make_server(keys=self.keys, routes=routes, cancellable={"/until_gone": self._wait})
        server.app.post("/app_wait")(self._app_wait)
        server.allow_play("/wait", "/echo", "/until_gone", "/app_wait")
        table = Users(uids={name.replace("_", "."): uid for name, uid in uids.items()})
        self.hosted = HostedServer(server, bind("127.0.0.1", 0), peers=Peers(table))
        self.port = int(self.hosted.url.rpartition(":")[2])

    async def _wait(self, call: RawRequest) -> bytes:
        await self.release.wait()
        return b"released"

    async def _app_wait(self) -> str:
        await self.release.wait()
        return "released"

    async def _echo(self, call: RawRequest) -> bytes:
        return b"%d" % len(call.body)

    def caller(self, address: str) -> Caller:
        callers = self.hosted._connections.callers
        found = None if callers is None else callers.get(None, address)
        assert found is not None
        return found

    async def send(
        self,
        address: str,
        path: str,
        body: bytes = b"{}",
        length: int | None = None,
        header: str = "x: y",
        token: str = PLAY,
    ) -> Connection:
        """Send a request from `address` on a connection of its own, with `length` as the length of its body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))
        lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {token}"]
        lines += ["content-type: application/json", f"content-length: {length or len(body)}", header]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return reader, writer

    async def call(self, address: str, path: str, body: bytes = b"{}") -> tuple[int, bytes]:
        """The status of a response, and its head and body."""
        return await self.answer(await self.send(address, path, body))

    async def answer(self, connection: Connection) -> tuple[int, bytes]:
        reader, writer = connection
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        writer.close()
        return int(head.split()[1]), head + body


@contextlib.asynccontextmanager
async def limited(rules: AccessRules = RULES, **uids: int) -> AsyncIterator[LimitedServer]:
    server = LimitedServer(rules, **uids)
    await server.hosted.listen()
    try:
        yield server
    finally:
        server.release.set()
        await server.hosted.stop()


async def test_requests_beyond_the_limit_of_a_client_get_429_and_those_of_another_client_are_served() -> None:
    async with limited() as server:
        held = [await server.send(GREEDY, "/wait") for _ in range(4)]
        await until(lambda: server.hosted.server.in_flight == 4)
        refused = await asyncio.gather(*(server.call(GREEDY, "/echo") for _ in range(50)))
        assert {status for status, _ in refused} == {429}
        assert b"retry-after: 1\r\n" in refused[0][1]
        assert b"4 requests in flight" in refused[0][1] and b"--max-client-requests" in refused[0][1]
        assert (await server.call(OTHER, "/echo"))[0] == 200
        server.release.set()
        assert [(await server.answer(one))[0] for one in held] == [200] * 4
        assert (await server.call(GREEDY, "/echo"))[0] == 200


async def test_a_body_beyond_the_limit_of_a_client_gets_429_and_that_of_another_client_is_received() -> None:
    async with limited() as server:
        _, writer = await server.send(GREEDY, "/echo", b"x" * 60_000, length=99_999)
        await until(lambda: server.hosted._connections.held_bytes == 60_000)
        status, refused = await server.call(GREEDY, "/echo", b"x" * 60_000)
        assert status == 429 and b"--max-client-bytes" in refused
        assert (await server.call(OTHER, "/echo", b"x" * 60_000))[0] == 200
        writer.close()
        await until(lambda: server.hosted._connections.held_bytes == 0)
        assert (await server.call(GREEDY, "/echo", b"x" * 60_000))[0] == 200


async def test_a_refused_body_takes_nothing_from_the_uploads_of_its_client() -> None:
    async with limited() as server:
        uploads = [await server.send(GREEDY, "/echo", b"x" * 32_000, length=32_001) for _ in range(3)]
        await until(lambda: server.caller(GREEDY).held_bytes == 96_000)
        reader, writer = await server.send(GREEDY, "/echo", b"x" * 30_000, length=99_999)
        assert b" 429 " in await reader.readuntil(b"\r\n\r\n")
        assert server.caller(GREEDY).held_bytes == server.hosted._connections.held_bytes == 96_000
        for _, upload in uploads:
            upload.write(b"x")
        assert [(await server.answer(one))[0] for one in uploads] == [200] * 3
        writer.close()


async def test_a_body_that_is_too_large_leaves_nothing_counted() -> None:
    async with limited() as server:
        server.hosted._connections.bounds = ListenerLimits(HttpLimits(body_bytes=50_000))
        chunks = b"c350\r\n" + b"x" * 50_000 + b"\r\n" + b"1\r\nx\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(GREEDY, 0))
        writer.write(b"POST /echo HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n" + chunks)
        assert b" 413 " in await reader.readuntil(b"\r\n\r\n")
        assert server.caller(GREEDY).held_bytes == 0
        writer.close()


async def test_requests_to_routes_of_the_app_count_as_well() -> None:
    async with limited(AccessRules(client_requests=1)) as server:
        held = await server.send(GREEDY, "/app_wait")
        await until(lambda: server.hosted.server.in_flight)
        assert (await server.call(GREEDY, "/echo"))[0] == 429
        server.release.set()
        assert (await server.answer(held))[0] == 200
        for _ in range(3):
            assert (await server.call(GREEDY, "/app_wait"))[0] == 200


@pytest.mark.parametrize(
    ("path", "header"),
    [("/wait", "x: y"), ("/wait", "connection: close"), ("/%77ait", "x: y"), ("/app_wait", "x: y")],
)
async def test_a_request_counts_until_its_handler_ends_and_not_until_its_client_disconnects(
    path: str, header: str
) -> None:
    async with limited(AccessRules(client_requests=1)) as server:
        _, writer = await server.send(GREEDY, path, header=header)
        await until(lambda: server.hosted.server.in_flight)
        writer.close()
        await until(lambda: not server.hosted._connections.connections)
        assert (await server.call(GREEDY, "/echo"))[0] == 429
        server.release.set()
        await until(lambda: not server.hosted.server.in_flight)
        assert (await server.call(GREEDY, "/echo"))[0] == 200


async def test_requests_that_wait_for_another_on_their_connection_count_until_they_are_served() -> None:
    async with limited(AccessRules(client_requests=3)) as server:
        _, writer = await server.send(GREEDY, "/app_wait")
        await until(lambda: server.hosted.server.in_flight)
        writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 2)
        await until(lambda: server.caller(GREEDY).requests == 3)
        server.release.set()
        await until(lambda: server.caller(GREEDY).requests == 0)
        writer.close()


async def test_a_cancelled_request_no_longer_counts() -> None:
    async with limited(AccessRules(client_requests=1)) as server:
        _, writer = await server.send(GREEDY, "/until_gone")
        await until(lambda: server.hosted.server.in_flight)
        writer.close()
        await until(lambda: not server.hosted.server.in_flight)
        assert (await server.call(GREEDY, "/echo"))[0] == 200


@pytest.mark.parametrize("uid", [os.geteuid(), 0])
async def test_the_user_of_the_run_and_root_have_no_limit(uid: int) -> None:
    async with limited(AccessRules(client_requests=1), **{"127_0_0_1": uid}) as server:
        held = [await server.send("127.0.0.1", "/wait") for _ in range(20)]
        await until(lambda: server.hosted.server.in_flight == 20)
        for _, writer in held:
            writer.close()


async def test_another_user_is_one_client_whatever_its_address() -> None:
    async with limited(AccessRules(client_requests=1), **{"127_0_0_2": 4321, "127_0_0_3": 4321}) as server:
        _, writer = await server.send(GREEDY, "/wait")
        await until(lambda: server.hosted.server.in_flight)
        status, refused = await server.call(OTHER, "/echo")
        assert status == 429 and b"the user with id 4321" in refused
        writer.close()


async def test_the_requests_of_a_channel_count() -> None:
    async with limited(AccessRules(client_requests=3)) as server:
        transport = HttpTransport()
        keys = server.keys.model_copy(update={"token": PLAY})
        client = make_client({"echo": [server.hosted.url]}, transport, keys=keys, channels=True)
        waiting = [asyncio.create_task(client.reach("echo", "/wait", b"{}", deadline_s())) for _ in range(5)]
        statuses = []
        for finished in asyncio.as_completed(waiting):
            statuses.append((await finished)[1].status)
            if len(statuses) == 2:
                server.release.set()
        assert statuses == [429, 429, 200, 200, 200]
        _, response = await client.reach("echo", "/echo", b"{}", deadline_s())
        assert response.status == 200
        await transport.close()


@pytest.mark.parametrize("path", ["/wait", "/app_wait"])
async def test_requests_with_the_run_token_have_no_limit_on_whichever_host_they_begin(path: str) -> None:
    async with limited(AccessRules(client_requests=1, client_bytes=10)) as server:
        held = [await server.send(GREEDY, path, b"x" * 100, token=TOKEN) for _ in range(5)]
        await until(lambda: server.hosted.server.in_flight == 5)
        server.release.set()
        assert [(await server.answer(one))[0] for one in held] == [200] * 5


async def test_the_requests_of_a_channel_with_the_run_token_have_no_limit() -> None:
    async with limited(AccessRules(client_requests=1)) as server:
        transport = HttpTransport()
        client = make_client({"echo": [server.hosted.url]}, transport, keys=server.keys, channels=True)
        waiting = [asyncio.create_task(client.reach("echo", "/wait", b"{}", deadline_s())) for _ in range(5)]
        await until(lambda: server.hosted.server.in_flight == 5)
        server.release.set()
        assert [(await one)[1].status for one in waiting] == [200] * 5
        await transport.close()


async def test_a_request_with_the_run_token_lifts_no_limit_for_the_next_on_its_connection() -> None:
    async with limited(AccessRules(client_requests=1)) as server:
        held = await server.send(GREEDY, "/wait")
        await until(lambda: server.hosted.server.in_flight)
        reader, writer = await server.send(GREEDY, "/echo", token=TOKEN)
        head = await reader.readuntil(b"\r\n\r\n2")
        assert head.startswith(b"HTTP/1.1 200")
        lines = f"POST /echo HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {PLAY}\r\n"
        writer.write(lines.encode() + b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
        assert (await server.answer((reader, writer)))[0] == 429
        server.release.set()
        assert (await server.answer(held))[0] == 200
        assert (await server.call(GREEDY, "/echo"))[0] == 200
