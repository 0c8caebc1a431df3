"""Answers of endpoints that are broken or hostile: a named failure at once, never more memory than the limits allow."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from rollyard.services.errors import FailureKind
from rollyard.services.http.content_encoding import InvalidResponse, decoders
from rollyard.services.http.limits import Limits
from rollyard.services.http.transport import HttpTransport
from tests.support.fixtures import failure_of, http, peer, send
from tests.unit.services.http.raw_peers import endlessly, saying, serving

SMALL = Limits(header_bytes=16 * 1024, headers=50, body_bytes=256 * 1024, stream_bytes=512 * 1024)
OK = b"HTTP/1.1 200 OK\r\n"
PIECE = b"x" * 8192
BOMB = gzip.compress(bytes(50_000_000))
LENGTH = b"content-length: %d\r\n\r\n"

ENDLESS = {
    "a body with no length": (OK + b"\r\n", PIECE),
    "events": (OK + b"content-type: text/event-stream\r\n\r\n", b"data: x\n\n" * 100),
    "chunks": (OK + b"transfer-encoding: chunked\r\n\r\n", b"2000\r\n" + PIECE + b"\r\n"),
    "headers": (OK, b"x-more: " + PIECE[:1000] + b"\r\n"),
    "one header": (OK + b"x-more: ", PIECE),
    "a first line": (b"HTTP/1.1 200 ", PIECE),
    "trailers": (OK + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x-more: " + PIECE[:1000] + b"\r\n"),
    "one trailer": (OK + b"transfer-encoding: chunked\r\n\r\n0\r\nx-more: ", PIECE),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 10),
}
"""What comes first, and what then never ends."""

WRONG = {
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
    "a length and chunks": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    "a length that is no number": OK + b"content-length: two\r\n\r\nab",
    "a length below zero": OK + b"content-length: -1\r\n\r\nab",
    "another transfer encoding": OK + b"transfer-encoding: gzip\r\n\r\nab",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "a torn gzip body with no length": OK + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"hello" * 100)[:-6],
    "no gzip at all": http(b"hello", "200 OK", None, "content-encoding: gzip"),
    "an encoding unknown, with no length": OK + b"content-encoding: zstd\r\n\r\nhello",
    "an encoding unknown": http(b"hello", "200 OK", None, "content-encoding: br"),
    "encoded five times": http(b"hello", "200 OK", None, "content-encoding: " + ", ".join(["gzip"] * 5)),
    "a gzip bomb": OK + b"content-encoding: gzip\r\n" + LENGTH % len(BOMB) + BOMB,
    "a bomb within a bomb": http(gzip.compress(BOMB), "200 OK", None, "content-encoding: gzip, gzip"),
    "a bomb of deflate": http(zlib.compress(bytes(5_000_000)), "200 OK", None, "content-encoding: deflate"),
    "a body said to be large": OK + LENGTH % 10**12 + b"x",
    "too many headers": OK + b"x: y\r\n" * 100 + b"\r\n",
    "large headers": OK + (b"x: " + PIECE[:1000] + b"\r\n") * 30 + b"\r\n",
}


def bounded() -> HttpTransport:
    """The transport within small limits."""
    return HttpTransport(SMALL)


@pytest.mark.parametrize("what", ENDLESS)
async def test_an_answer_that_never_ends_is_given_up_at_the_limit(what: str) -> None:
    said: list[int] = []
    transport = bounded()
    async with serving(endlessly(*ENDLESS[what], said)) as port:
        failure = await failure_of(send(transport, f"http://127.0.0.1:{port}/x"))
        await transport.close()
    assert failure.kind is FailureKind.CONNECTION_LOST
    # Beyond the limit there is what sockets and buffers hold.
    assert sum(said) < SMALL.body_bytes + 16_000_000


@pytest.mark.parametrize("what", [name for name in ENDLESS if name != "interim answers"])
async def test_a_stream_that_never_ends_is_given_up_at_the_limit(what: str) -> None:
    transport = bounded()

    async def read(port: int) -> None:
        _, pieces = await transport.stream("POST", f"http://127.0.0.1:{port}/x", b"{}", {}, 20.0)
        async for _ in pieces:
            pass

    async with serving(endlessly(*ENDLESS[what], [])) as port:
        failure = await failure_of(read(port))
        await transport.close()
    assert failure.kind is FailureKind.CONNECTION_LOST


@pytest.mark.parametrize("what", WRONG)
async def test_an_answer_that_is_wrong_is_a_lost_connection_at_once(what: str) -> None:
    transport = bounded()
    async with serving(saying(WRONG[what])) as port:
        failure = await failure_of(send(transport, f"http://127.0.0.1:{port}/x"))
        assert failure.kind is FailureKind.CONNECTION_LOST
        assert not transport._pool._open
        await transport.close()


@pytest.mark.parametrize("what", WRONG)
async def test_a_stream_that_is_wrong_is_a_lost_connection_at_once(what: str) -> None:
    transport = bounded()

    async def read(port: int) -> None:
        _, pieces = await transport.stream("POST", f"http://127.0.0.1:{port}/x", b"{}", {}, 20.0)
        async for _ in pieces:
            pass

    async with serving(saying(WRONG[what])) as port:
        failure = await failure_of(read(port))
        await transport.close()
    assert failure.kind is FailureKind.CONNECTION_LOST


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate", "two members"])
def test_a_body_is_decoded_however_it_was_encoded(encoding: str) -> None:
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    body = {
        "gzip": gzip.compress(b"hello"),
        "deflate": zlib.compress(b"hello"),
        "raw deflate": raw.compress(b"hello") + raw.flush(),
        "two members": gzip.compress(b"hel") + gzip.compress(b"lo"),
    }[encoding]
    name = "deflate" if "deflate" in encoding else "gzip"
    (whole,) = decoders([name], 5)
    (by_bytes,) = decoders([name], 5)
    assert whole.feed(body) == b"".join(by_bytes.feed(bytes([byte])) for byte in body) == b"hello"
    whole.finish()
    by_bytes.finish()
    with pytest.raises(InvalidResponse, match="larger than 4 bytes"):
        decoders([name], 4)[0].feed(body)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_bytes_after_a_response_without_a_body_are_not_mistaken_for_the_next_response(status: str) -> None:
    first = (
        f"HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\n".encode() + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    )
    transport = bounded()
    async with peer(first, http(b"good")) as other:
        await send(transport, other.url + "/x")
        assert (await send(transport, other.url + "/x")).body == b"good"
        assert other.connections == 2
        await transport.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_bytes_on_an_idle_connection_are_not_mistaken_for_the_next_response(streamed: bool) -> None:
    transport = bounded()
    late = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http(b"good", "200 OK", None))
        await late.wait()
        writer.write(http(b"late", "200 OK", None))
        await reader.read()

    async def ask(port: int) -> bytes:
        url = f"http://127.0.0.1:{port}/x"
        if not streamed:
            return (await send(transport, url, b"", "GET")).body
        _, pieces = await transport.stream("GET", url, b"", {}, 20.0)
        return b"".join([piece async for piece in pieces])

    async with serving(serve) as port:
        assert await ask(port) == b"good"
        late.set()
        await asyncio.sleep(0)
        # The duplicate may lie in the socket, not read yet.
        assert await ask(port) == b"good"
        await transport.close()


async def test_a_peer_that_responds_before_reading_the_request_leaves_no_connection_open() -> None:
    transport = bounded()
    async with serving(saying(http(b"no", "413 Too Large"), last=False)) as port:
        for _ in range(20):
            assert (await send(transport, f"http://127.0.0.1:{port}/x", bytes(8_000_000))).status == 413
        await asyncio.sleep(0)
        assert not transport._pool._open
        await transport.close()


@pytest.mark.parametrize("value", ["☃", "a\r\nb: c", "a\nb"])
async def test_a_header_that_cannot_be_sent_costs_no_connection(value: str) -> None:
    transport = bounded()
    async with peer(http()) as other:
        failure = await failure_of(send(transport, other.url + "/x", headers={"x-it": value}))
        assert failure.kind is FailureKind.BAD_REQUEST
        assert not other.connections
        await transport.close()


async def test_a_stream_of_events_may_be_longer_than_an_answer_that_is_kept() -> None:
    events = b"data: x\n\n" * 40_000
    head = OK + b"content-type: text/event-stream\r\n" + LENGTH % len(events)
    transport = bounded()
    async with serving(saying(head, events)) as port:
        _, pieces = await transport.stream("POST", f"http://127.0.0.1:{port}/x", b"{}", {}, 20.0)
        assert sum([len(piece) async for piece in pieces]) == len(events) > SMALL.body_bytes
        await transport.close()


async def test_a_trailer_says_nothing_of_how_an_answer_is_read() -> None:
    chunked = OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\ncontent-encoding: gzip\r\nx-late: 1\r\n\r\n"
    transport = bounded()
    async with serving(saying(chunked, last=False)) as port:
        answer = await send(transport, f"http://127.0.0.1:{port}/x", b"{}")
        assert answer.body == b"{}" and "x-late" not in answer.headers
        await transport.close()
