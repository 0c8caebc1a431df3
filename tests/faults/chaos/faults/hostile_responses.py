"""Bytes that an endpoint may send instead of a response: endless, compressed, truncated, slow, or not HTTP."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from dataclasses import dataclass
from functools import partial

from tests.faults.chaos.endpoint import Behaviour, Request, completion, http, later, scripted
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import FaultContext
from tests.faults.chaos.faults.engines import FEW, MANY, sometimes
from tests.faults.chaos.invariants import hold, injected

MAX_POURED = 2**30
MAX_TAKEN = 2**28
"""Bytes of one response that a server may accept before it closes the connection."""


def head(request: Request, transport: asyncio.Transport, lines: bytes) -> None:
    transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + lines + b"\r\n")


@dataclass
class Pour:
    """Sends the header `lines`, then `piece` repeatedly while the other side reads."""

    lines: bytes
    piece: bytes
    least: int
    """Bytes that one response must have sent for the fault to count as injected."""
    taken: int = 0
    """The largest number of bytes sent in one response."""

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + self.lines)
        sent = 0

        def more() -> None:
            nonlocal sent
            if transport.is_closing() or sent >= MAX_POURED:
                transport.close()
                return
            if transport.get_write_buffer_size() < 4 * len(self.piece):
                transport.write(self.piece)
                sent += len(self.piece)
                self.taken = max(self.taken, sent)
            asyncio.get_running_loop().call_later(0.001, more)

        more()


async def check_pour(pour: Pour, context: FaultContext, rng: random.Random) -> None:
    """Like `sometimes`; the server closes the connection long before its deadline."""
    await sometimes(pour, FEW, context, rng)
    injected(pour.taken >= pour.least, f"one answer sent {pour.taken} bytes at most")
    hold(pour.taken < MAX_TAKEN, f"{pour.taken / 2**20:.0f} MB of one response were accepted")


def announced(request: Request, transport: asyncio.Transport) -> None:
    """Announce a body of a terabyte and send none."""
    head(request, transport, b"content-length: 1000000000000\r\n")
    transport.write(b'{"id": ')


def bomb() -> bytes:
    """1 GB of spaces, compressed to a megabyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(b" " * 2**20) for _ in range(1024)]
    return b"".join([*pieces, packer.flush()])


class Packed:
    def __init__(self, encoding: bytes = b"gzip") -> None:
        self._encoding = encoding
        self._data = b""

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        self._data = self._data or bomb()
        lines = b"content-encoding: %b\r\ncontent-length: %d\r\n" % (self._encoding, len(self._data))
        head(request, transport, lines)
        transport.write(self._data)


def raw(data: bytes, *, close: bool = False) -> Behaviour:
    def behaviour(request: Request, transport: asyncio.Transport) -> None:
        transport.write(data)
        if close:
            asyncio.get_running_loop().call_later(0.01, transport.close)

    return behaviour


def dripping(request: Request, transport: asyncio.Transport) -> None:
    """Send the correct response at one byte per tenth of a second."""
    data = http(scripted(request.turn))

    def drip(at: int = 0) -> None:
        if not transport.is_closing() and at < len(data):
            transport.write(data[at : at + 1])
            asyncio.get_running_loop().call_later(0.1, drip, at + 1)

    drip()


def reset(request: Request, transport: asyncio.Transport) -> None:
    transport.abort()


def silent(request: Request, transport: asyncio.Transport) -> None:
    """Send nothing."""


def slow(request: Request, transport: asyncio.Transport) -> None:
    later(transport, 1.5, http(scripted(request.turn)))


def twice(request: Request, transport: asyncio.Transport) -> None:
    """Send the correct response, immediately followed by one without a request."""
    transport.write(http(scripted(request.turn)) + http(completion({"content": "A response to another request."})))


POURS: list[tuple[str, Pour]] = [
    ("an endless body", Pour(b"connection: close\r\n\r\n", b" " * 2**20, 2**25)),
    ("endless chunks", Pour(b"transfer-encoding: chunked\r\n\r\n", b"100000\r\n" + b" " * 2**20 + b"\r\n", 2**25)),
    ("endless headers", Pour(b"", b"x-more: " + b"y" * 2**16 + b"\r\n", 2**16)),
    ("endless small headers", Pour(b"", b"x-m: y\r\n" * 10_000, 2**16)),
]
GZIPPED = gzip.compress(b'{"choices": ')
HOSTILE: list[tuple[str, Behaviour]] = [
    ("a gzip bomb", Packed()),
    ("a deflate bomb", Packed(b"deflate")),
    ("a content length of a terabyte", announced),
    ("a byte every tenth of a second", dripping),
    (
        "truncated gzip",
        raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n" + GZIPPED[:12], close=True),
    ),
    ("an unknown encoding", raw(b"HTTP/1.1 200 OK\r\ncontent-encoding: zz\r\nconnection: close\r\n\r\n{}", close=True)),
    ("bytes that are not HTTP", raw(b"SSH-2.0-OpenSSH_9.2\r\n", close=True)),
    ("a second response after the first", twice),
    ("the connection reset", reset),
    ("a header that is not Latin-1", raw(b"HTTP/1.1 200 OK\r\nx-a: \xe2\x82\xac\r\ncontent-length: 2\r\n\r\n{}")),
]


SHORT_FORM = ("an endless body", "a gzip bomb", "truncated gzip", "a second response after the first")
"""Faults of the short form."""

FAULTS = [
    *(
        Fault(
            f"an endpoint that sends {kind}",
            4,
            "a failed call at a byte limit; all measured",
            partial(check_pour, pour),
            slow=kind not in SHORT_FORM,
        )
        for kind, pour in POURS
    ),
    *(
        Fault(
            f"an endpoint that sends {kind}",
            4,
            "a failed call within its limits; all measured",
            partial(sometimes, behaviour, FEW if number < 3 else MANY),
            slow=kind not in SHORT_FORM,
        )
        for number, (kind, behaviour) in enumerate(HOSTILE)
    ),
]
