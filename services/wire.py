"""Wire: HTTP/1.1 requests over plain kept-alive connections, for a fifth of the CPU that a general client takes.

What it does not do, aiohttp does in its place (transport.py): TLS, streams, methods other than GET and POST.
"""

from __future__ import annotations

import asyncio
import socket
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import httptools
from multidict import CIMultiDict
from yarl import URL


class NoConnection(OSError):
    """The peer could not be reached; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Target:
    """An address, taken apart."""

    host: str
    port: int
    request: str
    """Path and query, as they stand in the first line of a request."""
    named: str
    """The Host header."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


@lru_cache(maxsize=4096)
def target_of(url: str) -> Target | None:
    """The address taken apart; None for one that is not for us. Raises ValueError for one that is none."""
    parsed = URL(url)
    if parsed.scheme != "http" or not parsed.raw_host or not parsed.port or parsed.raw_user:
        return None
    return Target(parsed.raw_host, parsed.port, parsed.raw_path_qs or "/", parsed.raw_authority)


class Wire:
    """Connections to any number of peers, each used again as soon as its answer is there."""

    def __init__(self, keepalive_s: float, connect_timeout_s: float) -> None:
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._idle: dict[tuple[str, int], list[tuple[_Connection, float]]] = {}
        self._open: set[_Connection] = set()

    async def send(
        self, method: str, target: Target, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Reply:
        """One request and its answer. Raises NoConnection, TimeoutError, or OSError when the connection broke.

        Cancelling hangs up. A request is sent once: over a kept connection that just closed it is lost, not repeated.
        """
        lines = [f"{method} {target.request} HTTP/1.1", f"Host: {target.named}"]
        if body or method != "GET":
            lines.append(f"Content-Length: {len(body)}")
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
            raise ValueError("a line break within a header")
        deadline = asyncio.get_running_loop().time() + timeout_s
        connection = self._kept(target) or await self._connect(target, deadline)
        reply = await connection.exchange(head.encode("latin-1") + b"\r\n\r\n", body, deadline)
        if connection.reusable:
            self._idle.setdefault((target.host, target.port), []).append((connection, time.monotonic()))
        return reply

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in list(self._open):
            connection.hang_up()
        self._idle.clear()

    def _kept(self, target: Target) -> _Connection | None:
        """The connection that was used last, because it is the likeliest to be there still."""
        idle = self._idle.get((target.host, target.port))
        if not idle:
            return None
        oldest = time.monotonic() - self._keepalive_s
        while idle and idle[0][1] < oldest:
            idle.pop(0)[0].hang_up()
        while idle:
            connection, _ = idle.pop()
            if not connection.closed:
                return connection
        return None

    async def _connect(self, target: Target, deadline: float) -> _Connection:
        loop = asyncio.get_running_loop()
        limit = loop.time() + self._connect_timeout_s
        try:
            async with asyncio.timeout_at(min(limit, deadline)):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._open), target.host.strip("[]"), target.port
                )
        except TimeoutError:
            if deadline < limit:
                raise
            raise NoConnection(f"no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise NoConnection(error.strerror or str(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection; it carries one exchange at a time."""

    def __init__(self, opened: set[_Connection]) -> None:
        self.closed = False
        self._opened = opened
        self._parser = httptools.HttpResponseParser(self)  # calls the methods named on_...
        self._waiting: asyncio.Future[Reply] | None = None
        self._begin()

    @property
    def reusable(self) -> bool:
        """Open, and the whole request is away: a peer may have answered before it had read it."""
        return not self.closed and self._transport.get_write_buffer_size() == 0

    async def exchange(self, head: bytes, body: bytes, deadline: float) -> Reply:
        """Send a request; its answer. Raises TimeoutError at `deadline`, in the loop's time."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Reply] = loop.create_future()
        self._waiting = waiting
        # A timer of its own: asyncio.timeout costs three times as much, and this is the hottest line of the stack.
        timer = loop.call_at(deadline, self._expire)
        self._transport.writelines((head, body))
        try:
            return await waiting
        finally:
            timer.cancel()
            self._waiting = None
            if waiting.cancelled():
                self.hang_up()

    def hang_up(self) -> None:
        """End the connection."""
        self.closed = True
        self._transport.abort()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        # An answer of a model may take minutes, in which routers forget a silent connection.
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        """A piece of an answer, or of none."""
        if self._waiting is None:
            self.hang_up()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"what came is no HTTP: {error}")
            self.hang_up()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone; an answer without a length ends with it."""
        self.closed = True
        self._opened.discard(self)
        if self._until_close and error is None:
            self._finish()
        else:
            self._fail(f"closed by the peer{f' ({error})' if error else ''}")

    # --- called by the parser ---

    def on_message_begin(self) -> None:
        """A first line; one that nobody waits for makes the connection useless."""
        self._begin()
        if self._waiting is None or self._waiting.done():
            self.hang_up()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """All of them."""
        names = {name.lower() for name, _ in self._headers}
        self._until_close = not names & {"content-length", "transfer-encoding"}

    def on_body(self, piece: bytes) -> None:
        """Some of the body."""
        self._body.append(piece)

    def on_message_complete(self) -> None:
        """The end; an interim answer (100 to 199) is none yet."""
        if self._parser.get_status_code() >= 200:
            if not self._parser.should_keep_alive():
                self.hang_up()
            self._finish()

    def _begin(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._until_close = False

    def _finish(self) -> None:
        self._until_close = False
        if self._waiting is not None and not self._waiting.done():
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            headers = CIMultiDict(self._headers)
            if (encoding := headers.get("content-encoding", "identity")) != "identity":
                body = _decoded(body, encoding)
            self._waiting.set_result(Reply(self._parser.get_status_code(), headers, body))

    def _expire(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(TimeoutError())
            self.hang_up()

    def _fail(self, why: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(why))


def _decoded(body: bytes, encoding: str) -> bytes:
    """The body as it was: who is told nothing of encodings may send any. Raises ValueError, zlib.error."""
    if encoding.strip().lower() not in ("gzip", "deflate"):
        raise ValueError(f"the body is encoded as {encoding!r}")
    return zlib.decompress(body, zlib.MAX_WBITS | 32)  # either of the two, by its first bytes
