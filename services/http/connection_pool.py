"""ConnectionPool: sends HTTP/1.1 requests over keep-alive connections.

It needs a fifth of the CPU time of a general-purpose client. `AiohttpClient` sends the requests that the pool does not
support: proxies, streams, and methods other than GET and POST.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import select
import socket
import ssl
import time
import zlib
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar, cast

import aiohappyeyeballs
import httptools
from multidict import CIMultiDict
from yarl import URL

from rollyard.services.http.loop_lag import SLACK_S, LoopLag
from rollyard.services.http.request import HttpResponse, SentHeaders
from rollyard.services.http.tls import Trust, connect_error

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Maximum sizes of the parts of an HTTP message. Larger messages are rejected."""

    header_bytes: int = 64 * 1024
    """Maximum size of all header lines, including those of interim responses and trailers."""
    headers: int = 256
    body_bytes: int = 256 * MIB
    """Maximum size of the body, both encoded and decoded."""
    stream_bytes: int = 1024 * MIB
    """Maximum size of an uncompressed event stream. Streams are forwarded and never stored."""
    interim_responses: int = 16


RUN_LIMITS = HttpLimits()
"""Limits for messages between servers of the run, which can contain complete rollouts."""

ENDPOINT_LIMITS = HttpLimits(body_bytes=64 * MIB)
"""Limits for responses of engines and hosted APIs: about 500,000 tokens with their log-probabilities."""

PER_ITERATION = 16
"""Callbacks per iteration: about 5 ms of work, or 0.1 s on a busy host."""
NEXT_ADDRESS_S = 0.25
"""Delay before trying the next address of a host name, as recommended by RFC 8305."""
DNS_CACHE_S = 5.0
"""How long to cache a host name's addresses. Thousands of connections opened at once then share one lookup."""
REQUEST_HEADER = "x-rollyard-request"
"""The request's id, which the response repeats, so that a late one is not taken for that of the next request."""
SWEEP_S = 1.0
"""Interval at which the pool looks for exchanges that are due and connections that are idle for too long."""
RESERVED_FILES = 100
"""Half of the files that a process opens besides connections."""
P = TypeVar("P", bound=asyncio.BaseProtocol)
AddressInfos = list[tuple[Any, ...]]
Peer = tuple[str, int, bool]
"""Host, port, and whether the connection uses TLS."""


class ConnectionPool:
    """Manages keep-alive connections to any number of peers. A connection is reused once its response is complete."""

    def __init__(
        self,
        keepalive_s: float,
        other_keepalive_s: float,
        dialer: Dialer,
        limits: HttpLimits,
        lag: LoopLag,
        max_open: int | None = None,
    ) -> None:
        """`keepalive_s` is for peers that send the header in `echo`, and `other_keepalive_s` for all others.

        A connection beyond `max_open` replaces an idle one, if there is one. Default: half of the files that this
        process may open, because the other half are its callers' connections.
        """
        self._keepalive_s = keepalive_s
        self._other_keepalive_s = other_keepalive_s
        self._dialer = dialer
        self._limits = limits
        self._lag = lag
        self._budget = CallbackBudget()
        self._idle: defaultdict[Peer, list[tuple[Connection, float]]] = defaultdict(list)
        """Connections with the time until which each may be used again."""
        self._max_open = max_open or resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 - RESERVED_FILES
        self._open: set[Connection] = set()
        self._sweeping: asyncio.TimerHandle | None = None

    async def send(
        self,
        method: str,
        target: RequestTarget,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        echo: tuple[str, str] | None = None,
    ) -> HttpResponse:
        """Send a request and return its response.

        Cancellation closes the connection. A request is never sent twice, even if the peer has just closed
        the pooled connection. `echo`: the request's id, and the name of a response header; a peer that sends this
        header must also repeat the id.

        Raises InvalidHeader, ConnectFailed, TimeoutError, or OSError if the connection breaks.
        """
        # Built before connecting, so that an invalid header does not use up a connection.
        head = _head(method, target, len(body), headers, echo)
        connection = self._take_idle(target)
        if connection is None:
            if len(self._open) >= self._max_open:
                self._close_an_idle()
            started = self._lag.now()
            connection = await self._dialer.dial(target.peer, self._new, timeout_s)
            if self._sweeping is None:
                self._sweep()
            timeout_s -= self._lag.now() - started
        keepalive_s = self._other_keepalive_s
        try:
            response = await connection.start(head, body, timeout_s)
            if echo is not None and echo[1] in response.headers:
                if response.headers.get(REQUEST_HEADER) != echo[0]:
                    connection.abort()
                    raise InvalidResponse("the response belongs to a different request")
                keepalive_s = self._keepalive_s
            return response
        finally:
            self._give_back(target, connection, keepalive_s)

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _new(self) -> Connection:
        return Connection(self._open, self._limits, self._lag, self._budget)

    def _give_back(self, target: RequestTarget, connection: Connection, keepalive_s: float) -> None:
        if connection.end():
            self._idle[target.peer].append((connection, time.monotonic() + keepalive_s))
        else:
            connection.abort()

    def _sweep(self) -> None:
        """Once a second, start the timers of the exchanges that are due soon, and close connections idle for too long.

        Most exchanges end long before, and never need a timer, which takes a tenth of the time of an exchange.
        """
        for connection in self._open:
            connection.start_timer(within_s=2 * SWEEP_S)
        now = time.monotonic()
        for idle in self._idle.values():
            while idle and idle[0][1] < now:
                idle.pop(0)[0].abort()
        self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep) if self._open else None

    def _close_an_idle(self) -> None:
        """Close the connection that would expire first, to whichever peer."""
        idle = min((idle for idle in self._idle.values() if idle), key=lambda idle: idle[0][1], default=None)
        if idle is not None:
            idle.pop(0)[0].abort()

    def _take_idle(self, target: RequestTarget) -> Connection | None:
        """Take the most recently used idle connection, which is the most likely to still be open."""
        idle = self._idle.get(target.peer)
        if not idle:
            return None
        now = time.monotonic()
        while idle and idle[0][1] < now:
            idle.pop(0)[0].abort()
        while idle:
            connection, _ = idle.pop()
            if connection.is_idle:
                return connection
            connection.abort()
        return None


def _head(
    method: str, target: RequestTarget, length: int, headers: Mapping[str, str], echo: tuple[str, str] | None
) -> bytes:
    """Return the request line and the headers. Raises InvalidHeader if a header contains invalid characters."""
    size = b"Content-Length: %d\r\n" % length if length or method != "GET" else b""
    own = f"{REQUEST_HEADER}: {echo[0]}\r\n".encode() if echo is not None else b""
    block = (headers if isinstance(headers, SentHeaders) else SentHeaders(headers)).block
    return b"%b %b%b%b%b" % (method.encode(), target.lines, size, own, block)


@dataclass(frozen=True)
class RequestTarget:
    host: str
    port: int
    request_target: str
    """Path and query, as they appear in the request line."""
    host_header: str
    """Value of the Host header."""
    tls: bool = False

    @cached_property
    def peer(self) -> Peer:
        return self.host, self.port, self.tls

    @cached_property
    def lines(self) -> bytes:
        """What follows the method in a request, up to the Host header."""
        return f"{self.request_target} HTTP/1.1\r\nHost: {self.host_header}\r\n".encode()


@lru_cache(maxsize=4096)
def target_of(url: str) -> RequestTarget | None:
    """Parse a URL. Returns None if the pool does not support it. Raises ValueError if it is invalid."""
    parsed = URL(url)
    tls = parsed.scheme == "https"
    if not (tls or parsed.scheme == "http") or not parsed.raw_host or not parsed.port or parsed.raw_user:
        return None
    return RequestTarget(parsed.raw_host, parsed.port, parsed.raw_path_qs or "/", parsed.raw_authority, tls)


class Connection(asyncio.Protocol):
    """A connection is used by one caller at a time and then returned to the pool if it is `reusable`."""

    def __init__(
        self, open_connections: set[Connection], limits: HttpLimits, lag: LoopLag, budget: CallbackBudget
    ) -> None:
        self.closed = False
        self._open_connections = open_connections
        self._reader = ResponseReader(limits)
        self._lag = lag
        self._budget = budget
        self._pending: asyncio.Future[HttpResponse] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._readable = select.poll()

    @property
    def is_idle(self) -> bool:
        """True if the peer has neither closed the connection nor sent data since the last response."""
        return not self.closed and not self._readable.poll(0)

    def start(self, head: bytes, body: bytes, timeout_s: float) -> asyncio.Future[HttpResponse]:
        """Send a request, and return the future of its response. The caller must call `end` afterwards.

        Its exceptions are TimeoutError, InvalidResponse and ConnectionError.
        """
        self._pending = pending = self._loop.create_future()
        self._reader.reset()
        self._until = self._lag.now() + timeout_s
        if timeout_s < 2 * SWEEP_S:
            self._timer = self._loop.call_later(timeout_s, self._expire)
        self._transport.writelines((head, body))
        return pending

    def end(self) -> bool:
        """End the exchange. Return whether another one may follow: the request and the response are complete, and the
        peer keeps the connection open.
        """
        if self._timer is not None:
            self._stop_timer()
        self._pending = None
        return self._reader.reusable and not self.closed and self._transport.get_write_buffer_size() == 0

    def start_timer(self, within_s: float) -> None:
        """Start the timer of the exchange if it is due within that time. `ConnectionPool` calls this regularly."""
        if self._pending is not None and self._timer is None and self._reader.response is None:
            left_s = self._until - self._lag.now()
            if left_s < within_s:
                self._timer = self._loop.call_later(max(left_s, 0.0), self._expire)

    def _stop_timer(self) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._timer = None

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()

    # --- called by the event loop -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the interface but not the type
        sock = transport.get_extra_info("socket")
        # A model's response may take minutes, and routers drop idle connections in that time.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._readable.register(sock.fileno(), select.POLLIN)
        self._open_connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Pass the data to the response reader. Data outside an exchange closes the connection."""
        if self._pending is None or self._reader.response is not None:
            self.abort()
            return
        try:
            self._reader.feed(data)
        except Exception as error:
            self._fail(error)
        else:
            self._deliver()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the exchange, unless the response has no length and is therefore complete when the connection closes."""
        self.closed = True
        self._open_connections.discard(self)
        try:
            if self._pending is None or self._reader.response is not None:
                return
            if error is not None:
                raise InvalidResponse(f"the peer closed the connection ({error})")
            self._reader.finish()
        except Exception as failure:
            self._fail(failure)
        else:
            self._deliver()
        finally:
            self._reader.release()

    def _deliver(self) -> None:
        """Deliver a complete response. If many arrive at once, some are delivered in later iterations of the loop."""
        if self._reader.response is not None and self._pending is not None:
            if self._timer is not None:
                self._stop_timer()
            self._budget.run(_settle, self._pending, self._reader.response)

    def _expire(self) -> None:
        if (left_s := self._until - self._lag.now()) > SLACK_S:
            # This loop was blocked, so the response may be in the socket, unread.
            self._timer = self._loop.call_later(left_s, self._expire)
            return
        self._fail(TimeoutError())

    def _fail(self, error: Exception) -> None:
        self.abort()
        if self._pending is not None and not self._pending.done():
            self._pending.set_exception(error)


def _settle(pending: asyncio.Future[HttpResponse], response: HttpResponse) -> None:
    if not pending.done():
        pending.set_result(response)


class ResponseReader:
    """Parses the bytes passed to `feed` and sets `response` once it is complete. Raises only InvalidResponse."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._header_limit = limits.header_bytes
        self._parser = httptools.HttpResponseParser(self)  # calls the methods named on_...
        # Trailers may contain a length. In the headers, `on_headers_complete` rejects it beside a transfer encoding.
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True, lenient_spaces_after_chunk_size=True)
        self._clear()
        self.reset()

    def reset(self) -> None:
        """Prepare for another response, after a complete one."""
        self.response: HttpResponse | None = None
        self.reusable = False
        self._interim = 0
        self._header_bytes = 0
        self._unparsed_bytes = 0

    def feed(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.response is not None:  # keep the response and ignore what follows
                self.reusable = False
                return
            if isinstance(error.__context__, InvalidResponse):
                raise error.__context__ from None
            raise InvalidResponse(f"the response is not HTTP: {error}") from None
        except httptools.HttpParserUpgrade:
            raise InvalidResponse("the peer switched to a different protocol") from None
        if self._unparsed_bytes > self._header_limit:
            raise InvalidResponse(f"a header line is longer than {self._header_limit} bytes")

    def finish(self) -> None:
        """Handle the end of the connection: it completes a response without a length, and breaks any other."""
        if not self._until_close:
            raise InvalidResponse("the peer closed the connection")
        self._complete()

    def release(self) -> None:
        """Forget the parser, which knows the methods of this reader: only a garbage collection would free the two."""
        del self._parser

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.response is not None:
            raise InvalidResponse("the peer sent two responses to one request")
        self._clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unparsed_bytes = 0
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._header_limit:
            raise InvalidResponse(f"the response headers are larger than {self._header_limit} bytes")
        if not self._in_body:  # trailers do not affect how the response is parsed
            self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._unparsed_bytes = 0
        if len(self._headers) > self._limits.headers:
            raise InvalidResponse(f"the response has more than {self._limits.headers} headers")
        lengths, encodings = set(), set()
        for name, value in self._headers:
            lowered = name.lower()
            if lowered == "content-length":
                lengths.add(value)
            elif lowered == "transfer-encoding":
                encodings.add(value.lower())
        if len(lengths) > 1 or (lengths and encodings):
            raise InvalidResponse("the response headers contain contradictory lengths")
        if encodings and encodings != {"chunked"}:
            raise InvalidResponse(f"the transfer encoding is {sorted(encodings)}; only chunked is supported")
        if lengths and int(next(iter(lengths))) > self._limits.body_bytes:
            raise self._too_large()
        self._until_close = not lengths and not encodings
        self._in_body = True

    def on_body(self, piece: bytes) -> None:
        self._unparsed_bytes = 0
        self._body.append(piece)
        self._size += len(piece)
        if self._size > self._limits.body_bytes:
            raise self._too_large()

    def on_message_complete(self) -> None:
        """Complete the response, unless it is an interim response (status 100 to 199)."""
        self._unparsed_bytes = 0
        if self._parser.get_status_code() >= 200:
            self._complete()
            self.reusable = self._parser.should_keep_alive()
            return
        self._interim += 1
        if self._interim > self._limits.interim_responses:
            raise InvalidResponse(f"the response has more than {self._limits.interim_responses} interim responses")
        self._in_body = False

    def _clear(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._body: list[bytes] = []
        self._size = 0
        self._until_close = False
        self._in_body = False

    def _complete(self) -> None:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        headers = CIMultiDict(self._headers)
        if "content-encoding" in headers and body:
            for decoder in decoders(headers.getall("content-encoding"), self._limits.body_bytes):
                body = decoder.feed(body)
                decoder.finish()
        self._clear()
        self.response = HttpResponse.of(self._parser.get_status_code(), headers, body)

    def _too_large(self) -> InvalidResponse:
        return InvalidResponse(f"the response body is larger than {self._limits.body_bytes} bytes")


class Decoder:
    """Decodes a body incrementally to at most `limit` bytes. Raises InvalidResponse if that is not possible."""

    def __init__(self, encoding: str, limit: int) -> None:
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise InvalidResponse(f"the response body is encoded as {encoding!r}; expected gzip or deflate")
        self._encoding = encoding
        self._limit = limit
        self._left = limit
        self._first_byte = b""
        self._decoder: zlib._Decompress | None = None

    def feed(self, data: bytes) -> bytes:
        decoded: list[bytes] = []
        while data:
            if self._decoder is None:
                data, self._first_byte = self._first_byte + data, b""
                if len(data) < 2:
                    self._first_byte = data
                    break
                self._decoder = self._start(data)
            try:
                piece = self._decoder.decompress(data, self._left + 1)
            except zlib.error as error:
                raise InvalidResponse(f"the response body is not {self._encoding}: {error}") from None
            self._left -= len(piece)
            if self._left < 0:
                raise InvalidResponse(f"the decoded response body is larger than {self._limit} bytes")
            decoded.append(piece)
            data = self._decoder.unused_data
            if self._decoder.eof:  # a gzip body may have several members
                self._decoder = None
        return b"".join(decoded)

    def finish(self) -> None:
        """Raise InvalidResponse if the body is truncated."""
        if self._decoder is not None or self._first_byte:
            raise InvalidResponse(f"the {self._encoding} response body is truncated")

    def _start(self, data: bytes) -> zlib._Decompress:
        # The standard requires zlib's header for deflate, but some servers send raw deflate data.
        header = data[0] & 0x0F == 8 and not int.from_bytes(data[:2], "big") % 31
        raw = self._encoding == "deflate" and not header
        return zlib.decompressobj(-zlib.MAX_WBITS if raw else zlib.MAX_WBITS | 32)


def decoders(values: Iterable[str], limit: int) -> list[Decoder]:
    """Return the decoders for the values of Content-Encoding, in the order in which to apply them."""
    names = [name.strip() for name in ",".join(values).lower().split(",") if name.strip() not in ("", "identity")]
    if len(names) > 2:
        raise InvalidResponse(f"the response body is encoded {len(names)} times; expected at most 2")
    return [Decoder(name, limit) for name in reversed(names)]


class Dialer:
    """Opens connections with a connect timeout of `timeout_s` seconds, which excludes event-loop lag."""

    def __init__(self, timeout_s: float, lag: LoopLag, trust: Trust | None = None) -> None:
        self._timeout_s = timeout_s
        self._lag = lag
        self._trust = trust or Trust()
        self._names: dict[tuple[str, int], tuple[float, asyncio.Task[AddressInfos]]] = {}

    async def dial(self, peer: Peer, make: Callable[[], P], timeout_s: float) -> P:
        """Open a connection within `timeout_s` and the dialer's own timeout. Raises ConnectFailed."""
        limit_s = min(self._timeout_s, timeout_s)
        try:
            with self._lag.timeout(limit_s):
                return await self._connect(*peer, make)
        except TimeoutError:
            raise ConnectFailed(f"timed out after {limit_s:g} s", timed_out=True) from None
        except ssl.SSLError as error:
            untrusted = isinstance(error, ssl.SSLCertVerificationError)
            raise ConnectFailed(connect_error(error), untrusted=untrusted) from error
        except (OSError, RuntimeError) as error:  # uvloop raises a bare RuntimeError for some refusals
            raise ConnectFailed(getattr(error, "strerror", None) or str(error)) from error

    async def _connect(self, host: str, port: int, tls: bool, make: Callable[[], P]) -> P:
        loop, host = asyncio.get_running_loop(), host.strip("[]")
        context = self._trust.context() if tls else None
        if _is_address(host):
            return (await loop.create_connection(make, host, port, ssl=context))[1]
        infos: Any = await self._addresses(host, port)
        sock = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=NEXT_ADDRESS_S)
        try:
            return (await loop.create_connection(make, sock=sock, ssl=context, server_hostname=host if tls else None))[
                1
            ]
        except BaseException:
            sock.close()
            raise

    async def _addresses(self, host: str, port: int) -> AddressInfos:
        now = asyncio.get_running_loop().time()
        cached = self._names.get((host, port))
        if cached is None or cached[0] < now or (cached[1].done() and (cached[1].cancelled() or cached[1].exception())):
            cached = (now + DNS_CACHE_S, asyncio.create_task(_look_up(host, port)))
            self._names[host, port] = cached
        return await asyncio.shield(cached[1])


async def _look_up(host: str, port: int) -> AddressInfos:
    return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


class CallbackBudget:
    """Runs callbacks in FIFO order, at most `per_iteration` of them in each iteration of the event loop."""

    def __init__(self, per_iteration: int = PER_ITERATION) -> None:
        self._per_iteration = per_iteration
        self._used = 0
        self._scheduled = False
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call `callback` now, or in a later iteration of the loop if this one has used up its budget."""
        if self._used >= self._per_iteration or self._waiting:
            self._waiting.append((callback, arguments))
            return
        self._used += 1
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_iteration)
        callback(*arguments)

    def _next_iteration(self) -> None:
        self._used = min(len(self._waiting), self._per_iteration)
        self._scheduled = self._used > 0
        if not self._scheduled:
            return
        asyncio.get_running_loop().call_soon(self._next_iteration)
        for _ in range(self._used):
            callback, arguments = self._waiting.popleft()
            callback(*arguments)


class ResponseBody:
    """An iterator over a body. Closing it closes the connection, also before the first chunk was read.

    A generator alone would not: closing one before its first step runs none of its code.
    """

    def __init__(self, chunks: AsyncGenerator[bytes], close: Callable[[], None]) -> None:
        self._chunks = chunks
        self.close = close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        self.close()
        await self._chunks.aclose()


class InvalidResponse(ConnectionError):
    """Raised when the peer sends an unusable response. Its connection cannot be reused."""


class ConnectFailed(OSError):
    """Raised when the peer cannot be reached. Nothing was sent."""

    def __init__(self, reason: str, *, timed_out: bool = False, untrusted: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out
        """True if the peer did not respond. It may be running but too busy to accept connections."""
        self.untrusted = untrusted
        """True if its certificate is not accepted."""

    def __str__(self) -> str:
        return str(self.args[0])
