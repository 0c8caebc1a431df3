"""Responses of broken or hostile endpoints: an immediate named failure, and no more memory than the limits allow."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from rollyard.records.errors import FailureKind
from rollyard.services.http.connection_pool import HttpLimits, InvalidResponse, ResponseReader, decoders
from rollyard.services.http.transport import HttpTransport
from tests.support.fixtures import failure_of, http, peer, send
from tests.support.waiting import deadline_s
from tests.unit.services.http.raw_peers import respond, respond_endlessly, tcp_server

SMALL = HttpLimits(header_bytes=16 * 1024, headers=50, body_bytes=256 * 1024, stream_bytes=512 * 1024)
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
    "interim responses": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 10),
}
"""The start of each response, and the chunk that repeats endlessly after it."""

INVALID = {
    "a length twice": OK + b"content-length: 5\r\ncontent-length: 5\r\n\r\nhello",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\nabc",
    "a length and chunks": OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    "chunks and a length": OK + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    "a length that is not a number": OK + b"content-length: two\r\n\r\nab",
    "a negative length": OK + b"content-length: -1\r\n\r\nab",
    "another transfer encoding": OK + b"transfer-encoding: gzip\r\n\r\nab",
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "a truncated gzip body with no length": OK + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"hello" * 100)[:-6],
    "a body that is not gzip": http(b"hello", "200 OK", None, "content-encoding: gzip"),
    "an unknown encoding with no length": OK + b"content-encoding: zstd\r\n\r\nhello",
    "an unknown encoding": http(b"hello", "200 OK", None, "content-encoding: br"),
    "encoded five times": http(b"hello", "200 OK", None, "content-encoding: " + ", ".join(["gzip"] * 5)),
    "a gzip bomb": OK + b"content-encoding: gzip\r\n" + LENGTH % len(BOMB) + BOMB,
    "a nested gzip bomb": http(gzip.compress(BOMB), "200 OK", None, "content-encoding: gzip, gzip"),
    "a deflate bomb": http(zlib.compress(bytes(5_000_000)), "200 OK", None, "content-encoding: deflate"),
    "a large declared length": OK + LENGTH % 10**12 + b"x",
    "too many headers": OK + b"x: y\r\n" * 100 + b"\r\n",
    "large headers": OK + (b"x: " + PIECE[:1000] + b"\r\n") * 30 + b"\r\n",
}


async def read(transport: HttpTransport, port: int, *, streamed: bool) -> None:
    url = f"http://127.0.0.1:{port}/x"
    if not streamed:
        await send(transport, url)
        return
    _, chunks = await transport.stream("POST", url, b"{}", {}, deadline_s())
    async for _ in chunks:
        pass


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", ENDLESS)
async def test_an_endless_response_fails_at_the_limit(case: str, streamed: bool) -> None:
    if streamed and case == "interim responses":
        pytest.skip("aiohttp has no limit of their number")
    sent: list[int] = []
    transport = HttpTransport(SMALL)
    async with tcp_server(respond_endlessly(*ENDLESS[case], sent)) as port:
        failure = await failure_of(read(transport, port, streamed=streamed))
        await transport.close()
    assert failure.kind is FailureKind.CONNECTION_LOST
    # The buffers of both sockets may hold data beyond the limit.
    assert sum(sent) < (SMALL.stream_bytes if streamed else SMALL.body_bytes) + 16_000_000


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", INVALID)
async def test_an_invalid_response_is_a_lost_connection(case: str, streamed: bool) -> None:
    transport = HttpTransport(SMALL)
    async with tcp_server(respond(INVALID[case])) as port:
        failure = await failure_of(read(transport, port, streamed=streamed))
        assert failure.kind is FailureKind.CONNECTION_LOST
        assert not transport._pool._open
        await transport.close()


CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"
VALID = {
    "a chunk extension": CHUNKED + b"5;a=b\r\nhello\r\n0;last\r\n\r\n",
    "a quoted chunk extension": CHUNKED + b'5;a="b; \\"c"\r\nhello\r\n0\r\n\r\n',
    "spaces after the size of a chunk": CHUNKED + b"5  \r\nhello\r\n0\r\n\r\n",
    "a trailer": CHUNKED + b"5\r\nhello\r\n0\r\nx-checksum: 1\r\n\r\n",
    "a length as a trailer": CHUNKED + b"5\r\nhello\r\n0\r\ncontent-length: 5\r\n\r\n",
}


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("case", VALID)
async def test_an_unusual_but_valid_response_is_read_and_its_connection_reused(case: str, size: int) -> None:
    reader = ResponseReader(SMALL)
    for _ in range(2):
        reader.reset()
        for start in range(0, len(VALID[case]), size):
            reader.feed(VALID[case][start : start + size])
        assert reader.response is not None
        assert (reader.response.status, reader.response.body) == (200, b"hello")
        assert reader.reusable


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate", "two members"])
def test_a_body_of_any_supported_encoding_is_decoded(encoding: str) -> None:
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
    with pytest.raises(InvalidResponse, match="4 bytes"):
        decoders([name], 4)[0].feed(body)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
async def test_bytes_after_a_response_without_a_body_are_not_mistaken_for_the_next_response(status: str) -> None:
    first = (
        f"HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\n".encode() + b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    )
    transport = HttpTransport(SMALL)
    async with peer(first, http(b"good")) as other:
        await send(transport, other.url + "/x")
        assert (await send(transport, other.url + "/x")).body == b"good"
        assert other.connections == 2
        await transport.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_bytes_on_an_idle_connection_are_not_mistaken_for_the_next_response(streamed: bool) -> None:
    transport = HttpTransport(SMALL)
    late = asyncio.Event()

    async def send_late_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http(b"good", "200 OK", None))
        await late.wait()
        writer.write(http(b"late", "200 OK", None))
        await reader.read()

    async def get_body(port: int) -> bytes:
        url = f"http://127.0.0.1:{port}/x"
        if not streamed:
            return (await send(transport, url, b"", "GET")).body
        _, chunks = await transport.stream("GET", url, b"", {}, deadline_s())
        return b"".join([chunk async for chunk in chunks])

    async with tcp_server(send_late_bytes) as port:
        assert await get_body(port) == b"good"
        late.set()
        await asyncio.sleep(0)
        # The late bytes may still be unread in the socket.
        assert await get_body(port) == b"good"
        await transport.close()


async def test_a_peer_that_responds_before_reading_the_request_leaves_no_connection_open() -> None:
    transport = HttpTransport(SMALL)
    async with tcp_server(respond(http(b"no", "413 Too Large"), close=False)) as port:
        for _ in range(20):
            assert (await send(transport, f"http://127.0.0.1:{port}/x", bytes(8_000_000))).status == 413
        await asyncio.sleep(0)
        assert not transport._pool._open
        await transport.close()


@pytest.mark.parametrize("value", ["☃", "a\r\nb: c", "a\nb"])
async def test_a_header_that_cannot_be_sent_opens_no_connection(value: str) -> None:
    transport = HttpTransport(SMALL)
    async with peer(http()) as other:
        failure = await failure_of(send(transport, other.url + "/x", headers={"x-it": value}))
        assert failure.kind is FailureKind.BAD_REQUEST
        assert not other.connections
        await transport.close()


async def test_an_event_stream_may_exceed_the_limit_of_a_buffered_response() -> None:
    events = b"data: x\n\n" * 40_000
    head = OK + b"content-type: text/event-stream\r\n" + LENGTH % len(events)
    transport = HttpTransport(SMALL)
    async with tcp_server(respond(head, events)) as port:
        _, chunks = await transport.stream("POST", f"http://127.0.0.1:{port}/x", b"{}", {}, deadline_s())
        assert sum([len(chunk) async for chunk in chunks]) == len(events) > SMALL.body_bytes
        await transport.close()


async def test_closing_a_stream_before_its_first_chunk_closes_the_connection() -> None:
    transport = HttpTransport(SMALL)
    closed = asyncio.Event()

    async def stay_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-type: text/event-stream\r\n\r\n")
        while await reader.read(1000):
            pass
        closed.set()

    async with tcp_server(stay_open) as port:
        _, body = await transport.stream("POST", f"http://127.0.0.1:{port}/x", b"{}", {}, deadline_s())
        await body.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(deadline_s()):
            await closed.wait()
        await transport.close()
