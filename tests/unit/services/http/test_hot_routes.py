"""POSTs to hot routes over a socket, which bypass ASGI: whatever the handler does, HTTP's framing is right."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from rollyard.services.http.listener import bind
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.runtime.hosting import HostedServer
from tests.support.fixtures import make_server
from tests.support.waiting import until
from tests.unit.services.http.raw_peers import exchange

HEAD = b"POST /%b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n%b\r\n{}"


class Routes:
    """Handlers, and what has become of them."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []

    async def echo(self, call: RawRequest) -> bytes:
        return b"%b %b %b" % (call.path.encode(), call.query, call.body)

    async def wait(self, call: RawRequest) -> bytes:
        self.began.append(call.path)
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("finished")
        return b"{}"

    async def stream(self, call: RawRequest) -> RawResponse:
        async def pieces() -> AsyncIterator[bytes]:
            self.began.append(call.path)
            try:
                yield b"a"
                yield b""
                if call.path == "/broken":
                    raise RuntimeError("broken")
                if call.path == "/endless":
                    await asyncio.Event().wait()
                yield b"bcd"
            finally:
                self.ended.append("closed")

        return RawResponse(stream=pieces())

    async def header(self, call: RawRequest) -> RawResponse:
        return RawResponse(b"{}", headers=((b"x-a", b"1\r\nx-injected: 2"),))


@pytest.fixture
async def served() -> AsyncIterator[tuple[Routes, HostedServer]]:
    routes = Routes()
    handlers: dict[str, Handler] = {"/echo": routes.echo, "/header": routes.header, "/wait": routes.wait}
    handlers |= dict.fromkeys(("/stream", "/broken", "/endless"), routes.stream)
    server = make_server(routes=handlers)
    server.route("/cancellable", routes.wait, cancellable=True)
    hosted = HostedServer(server, bind("127.0.0.1", 0))
    await hosted.listen()
    try:
        yield routes, hosted
    finally:
        await hosted.stop()


def request(path: bytes, *headers: bytes) -> bytes:
    return HEAD % (path, b"".join(header + b"\r\n" for header in headers))


LAST = request(b"echo", b"connection: close")


@pytest.mark.parametrize(
    ("first", "body"),
    [
        (request(b"echo?a=b"), b"/echo a=b {}"),
        (request(b"ech%6F"), b"/echo  {}"),
        (request(b"stream"), b"1\r\na\r\n3\r\nbcd\r\n0\r\n\r\n"),
        (request(b"wait"), b"{}"),
        (request(b"echo", b"x-rollyard-request: 7f"), b"x-rollyard-request: 7f"),
        (request(b"echo").replace(b" HTTP", b"?a#b HTTP"), b"/echo a {}"),
    ],
)
async def test_a_connection_is_used_again_after_a_response(
    first: bytes, body: bytes, served: tuple[Routes, HostedServer]
) -> None:
    response = await exchange(int(served[1].url.rpartition(":")[2]), first + LAST)
    assert response.count(b"HTTP/1.1 200 OK") == 2
    assert body in response and response.endswith(b"/echo  {}")


@pytest.mark.parametrize(("path", "whole"), [(b"broken", b"1\r\na\r\n"), (b"header", b"")])
async def test_a_response_that_fails_closes_its_connection(
    path: bytes, whole: bytes, served: tuple[Routes, HostedServer]
) -> None:
    response = await exchange(int(served[1].url.rpartition(":")[2]), request(path) + LAST)
    assert response.endswith(whole) and b"injected" not in response and b"/echo" not in response


@pytest.mark.parametrize(
    ("path", "end"), [("/cancellable", "cancelled"), ("/wait", "finished"), ("/endless", "closed")]
)
async def test_a_caller_that_leaves_ends_streams_and_cancellable_handlers_alone(
    path: str, end: str, served: tuple[Routes, HostedServer]
) -> None:
    routes, hosted = served
    _, writer = await asyncio.open_connection("127.0.0.1", int(hosted.url.rpartition(":")[2]))
    writer.write(request(path[1:].encode()))
    await until(lambda: routes.began == [path])
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    await until(lambda: routes.ended == [end])
    await until(lambda: hosted.server.in_flight == 0)


async def test_a_server_that_stops_finishes_a_response_and_closes_the_connection(
    served: tuple[Routes, HostedServer],
) -> None:
    routes, hosted = served
    answering = asyncio.create_task(exchange(int(hosted.url.rpartition(":")[2]), request(b"wait")))
    await until(lambda: routes.began == ["/wait"])
    await hosted.stop()
    response = await answering
    assert response.startswith(b"HTTP/1.1 200 OK") and b"connection: close" in response
