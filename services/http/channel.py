"""Channel: one connection between two processes of the run, which carries any number of requests at once.

Over HTTP/1.1, each request in flight needs a connection of its own, and each message has a head that the other side
parses again. That was a third of the CPU time of a turn. A channel starts as an HTTP upgrade, in which the server
checks the run, the token and the user of the connection. It is opened before the first request to a server that
accepts channels according to the run's directory. Then both sides send frames:

    length       u32   number of bytes after this header
    number       u32   of the request, chosen by the client
    kind         u8    REQUEST, RESPONSE, CANCEL, NOT_SERVED or BROKEN
    status       u16   of a response
    head_length  u32   length of the head, which the body follows

The head of a request is its target and its header lines, and that of a response its header lines, as in HTTP. Calls of
the same session have equal heads, so each is parsed once. Frames that are written in one iteration of the event loop
are sent together. Servers of other frameworks, large requests and event streams use HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import struct
import time
from collections.abc import Callable, Mapping, MutableSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast
from urllib.parse import unquote

from multidict import CIMultiDict, CIMultiDictProxy

from rollyard.services.http.callers import Caller
from rollyard.services.http.connection_pool import (
    RUN_LIMITS,
    CallbackBudget,
    ConnectFailed,
    Dialer,
    HttpLimits,
    InvalidResponse,
    Peer,
    RequestTarget,
)
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import (
    Headers,
    HttpResponse,
    RawRequest,
    RawResponse,
    SentHeaders,
    header_lines,
    joined,
)

log = logging.getLogger(__name__)

UPGRADE = b"rollyard-channel"
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: %b\r\n\r\n" % UPGRADE
REQUEST, RESPONSE, CANCEL, NOT_SERVED, BROKEN = range(5)
FRAME = struct.Struct("!IIBHI")
FULL = 503
"""Status of a NOT_SERVED frame if it is so only for the moment."""
MAX_NOT_SERVED = 1024
MAX_REQUEST_BYTES = 1 << 20
"""Larger requests use HTTP, so that they do not hold up the others."""
MAX_HEAD_BYTES = 16 << 10
MAX_RESPONSE_BYTES = RUN_LIMITS.body_bytes
"""A larger one would end the channel, and with it the calls of others."""
OPEN_S = 5.0
"""Time for the upgrade, after the connection is made. A server that does not respond in that time is busy."""
REFUSED_S = 60.0
"""How long a server that refused a channel, or a proxy in front of it, gets plain HTTP before it is asked again."""
BUSY = f"no channel was opened within {OPEN_S:g} s"
CLOSED = "the peer closed the connection"
SILENT_S = 15.0
"""If nothing has arrived for this long, the peer may be gone without a word, which a new connection would show."""
MAX_UNREAD_BYTES = 4 << 20
"""A client that has so many bytes of responses left to read may send no more requests until it has read them."""
MAX_COMMON_BYTES = 2048
"""Longer heads are not kept for the next request or response, nor are those of responses with a session's cookie."""
_TRACE = b"\r\ntraceparent: "


class FrameReader:
    """Cuts the bytes of a connection into frames."""

    def __init__(self, max_bytes: int, on_frame: Callable[[int, int, int, bytes, bytes], None]) -> None:
        self._max_bytes = max_bytes
        self._on_frame = on_frame
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = FRAME.size

    def feed(self, data: bytes) -> None:
        """Call `on_frame` for each complete frame. Raises InvalidResponse for one that is not valid."""
        self._held += len(data)
        if self._pieces or self._held < self._needed:
            self._pieces.append(data)
            if self._held < self._needed:
                return
            data, self._pieces = b"".join(self._pieces), []
        at, end = 0, len(data)
        while end - at >= FRAME.size:
            length, number, kind, status, head_length = FRAME.unpack_from(data, at)
            if length > self._max_bytes or head_length > length:
                raise InvalidResponse(f"a frame of {length} bytes with a head of {head_length} bytes")
            start, after = at + FRAME.size, at + FRAME.size + length
            if after > end:
                self._needed = FRAME.size + length
                break
            body = start + head_length
            self._on_frame(number, kind, status, data[start:body], data[body:after])
            at = after
        else:
            self._needed = FRAME.size
        self._held = end - at
        if self._held:
            self._pieces = [data[at:]]


class FrameProtocol(asyncio.Protocol):
    """One end of a channel: reads frames, and writes those of one iteration of the event loop together."""

    def __init__(self, max_bytes: int) -> None:
        self._reader = FrameReader(max_bytes, self.on_frame)
        self._unsent: list[bytes] = []
        self.closed = False

    def on_frame(self, number: int, kind: int, status: int, head: bytes, body: bytes) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport has the interface but not the type
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except InvalidResponse as error:
            log.error("a channel between two servers is closed: %s", error)
            self.abort()

    def write(self, number: int, kind: int, status: int = 0, head: bytes = b"", body: bytes = b"") -> None:
        if self.closed:
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += FRAME.pack(len(head) + len(body), number, kind, status, len(head)), head, body

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if not self.closed:
            self._transport.write(b"".join(unsent))


# --- the client's end -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Call:
    target: str
    pending: asyncio.Future[HttpResponse | None]
    response: HttpResponse | None = None
    """Set once it has arrived; `pending` gets it when it is its turn."""


class Channel(FrameProtocol):
    def __init__(self, opened: set[Channel], limits: HttpLimits, lag: LoopLag, budget: CallbackBudget) -> None:
        super().__init__(limits.body_bytes + limits.header_bytes)
        self._opened = opened
        self._lag = lag
        self._budget = budget
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self.not_served: set[str] = set()
        """Targets for which the server has no route that a channel can use."""
        self._received = 0.0
        self._retired = False
        self._answer = b""
        self._accepted: asyncio.Future[bool] | None = None

    @property
    def is_usable(self) -> bool:
        """Whether the next request may use the channel: it is open, and something has arrived lately."""
        return not self.closed and self._lag.now() - self._received < SILENT_S

    async def open(self, target: RequestTarget, headers: SentHeaders) -> bool:
        """Ask the server to open the channel; return whether it does. Raises ConnectFailed if the connection breaks."""
        if self.closed:  # since it was connected; uvloop raises RuntimeError for a write
            raise ConnectFailed(CLOSED)
        self._accepted = self._loop.create_future()
        lines = f"GET /health HTTP/1.1\r\nHost: {target.host_header}\r\nConnection: upgrade\r\n".encode()
        self._transport.write(b"%bUpgrade: %b\r\n%b" % (lines, UPGRADE, headers.block))
        return await self._accepted

    async def send(self, target: str, headers: SentHeaders, body: bytes, timeout_s: float) -> HttpResponse | None:
        """POST and return the response; None if the server has no route for it that a channel can use.

        Raises TimeoutError, or InvalidResponse if the connection breaks.
        """
        number = next(self._numbers) & 0xFFFFFFFF
        pending: asyncio.Future[HttpResponse | None] = self._loop.create_future()
        call = self._calls[number] = _Call(target, pending)
        self.write(number, REQUEST, 0, b"%b\r\n%b" % (target.encode(), headers.block), body)
        try:
            with self._lag.timeout(timeout_s):
                return await pending
        except (asyncio.CancelledError, TimeoutError) as error:
            if call.response is not None and isinstance(error, TimeoutError):
                return call.response
            self.write(number, CANCEL)
            raise
        finally:
            self._calls.pop(number, None)
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Close the channel once its calls have ended."""
        self._retired = True
        if not self._calls:
            self.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        self._received = self._lag.now()
        if self._accepted is None or self._accepted.done():
            super().data_received(data)
            return
        self._answer += data
        if not ACCEPTED.startswith(self._answer[: len(ACCEPTED)]):
            self._accepted.set_result(False)
            self.abort()
        elif len(self._answer) >= len(ACCEPTED):
            self._accepted.set_result(True)
            if rest := self._answer[len(ACCEPTED) :]:
                super().data_received(rest)

    def on_frame(self, number: int, kind: int, status: int, head: bytes, body: bytes) -> None:
        call = self._calls.pop(number, None)
        if call is None:
            return  # it was cancelled, or took too long
        if kind == RESPONSE:
            is_common = len(head) < MAX_COMMON_BYTES and b"set-cookie" not in head
            headers, cookies = (_common_head if is_common else _response_head)(head)
            call.response = HttpResponse(status, headers, body, cookies)
            self._budget.run(_settle, call.pending, call.response)
        elif kind == NOT_SERVED:
            if status != FULL and len(self.not_served) < MAX_NOT_SERVED:
                self.not_served.add(call.target)
            self._budget.run(_settle, call.pending, None)
        else:
            _fail(call, InvalidResponse("the server failed while it responded"))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._opened.discard(self)
        calls, self._calls = self._calls, {}
        reason = f"the peer closed the connection{f' ({error})' if error else ''}"
        for call in calls.values():
            self._budget.run(_fail, call, InvalidResponse(reason))
        if self._accepted is not None and not self._accepted.done():
            self._accepted.set_exception(ConnectFailed(CLOSED))


def _settle(pending: asyncio.Future[HttpResponse | None], response: HttpResponse | None) -> None:
    if not pending.done():
        pending.set_result(response)


def _fail(call: _Call, error: Exception) -> None:
    if not call.pending.done():
        call.pending.set_exception(error)


def _response_head(head: bytes) -> tuple[CIMultiDictProxy[str], tuple[str, ...]]:
    lines = head.decode("latin-1").split("\r\n")[:-1]
    headers = CIMultiDict((name, value) for name, _, value in (line.partition(": ") for line in lines))
    return CIMultiDictProxy(headers), tuple(headers.getall("set-cookie", ()))


_common_head = lru_cache(maxsize=1024)(_response_head)


class Channels:
    """The channels to the servers that this process calls, at most one for each."""

    def __init__(self, dialer: Dialer, limits: HttpLimits, lag: LoopLag, needed: tuple[str, ...]) -> None:
        """`needed`: names of the headers with which a server checks who opens a channel."""
        self._dialer = dialer
        self._limits = limits
        self._lag = lag
        self._needed = needed
        self._budget = CallbackBudget()
        self._opened: set[Channel] = set()
        self._channels: dict[Peer, Channel] = {}
        self._not_before: dict[Peer, float] = {}
        self._opening: dict[Peer, asyncio.Task[Channel | ConnectFailed | None]] = {}

    async def get(
        self, target: RequestTarget, headers: SentHeaders, body: bytes, timeout_s: float
    ) -> tuple[Channel | None, float]:
        """Return the channel for a request, and what is left of `timeout_s`; None if the request has to use HTTP.

        The first request opens the channel, and those that come meanwhile wait with it. Raises ConnectFailed.
        """
        if len(body) > MAX_REQUEST_BYTES or len(headers.block) > MAX_HEAD_BYTES:
            return None, timeout_s
        peer = target.peer
        channel = self._channels.get(peer)
        if channel is not None and channel.is_usable:
            return None if target.request_target in channel.not_served else channel, timeout_s
        opening = self._opening.get(peer)
        if opening is None:
            if time.monotonic() < self._not_before.get(peer, 0.0):
                return None, timeout_s
            # A task of its own, so that the others may still use the channel if the first caller is cancelled.
            shown = SentHeaders({name: headers[name] for name in self._needed if name in headers})
            opening = self._opening[peer] = asyncio.create_task(self._open(target, shown))
        started = self._lag.now()
        try:
            with self._lag.timeout(timeout_s):
                await asyncio.wait((opening,))
        except TimeoutError:
            raise ConnectFailed(f"timed out after {timeout_s:g} s", timed_out=True) from None
        found = ConnectFailed("the client is closed") if opening.cancelled() else opening.result()
        if isinstance(found, ConnectFailed):  # each caller raises its own: a traceback holds what it passed through
            raise ConnectFailed(str(found), timed_out=found.timed_out, untrusted=found.untrusted)
        if found is not None and found.closed:
            raise ConnectFailed(CLOSED)
        return found, timeout_s - (self._lag.now() - started)

    def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        self._opening.clear()
        for channel in list(self._opened):
            channel.abort()
        self._channels.clear()

    async def _open(self, target: RequestTarget, headers: SentHeaders) -> Channel | ConnectFailed | None:
        """Open a channel; return None if the peer refuses it, and ConnectFailed if it does not respond."""
        peer = target.peer
        before = self._channels.get(peer)
        channel: Channel | None = None
        is_open = False
        try:
            channel = await self._dialer.dial(peer, self._new, OPEN_S)
            with self._lag.timeout(OPEN_S):
                is_open = await channel.open(target, headers)
        except (ConnectFailed, TimeoutError) as error:
            # A proxy may let no upgrade pass. A peer that has opened a channel would not respond over HTTP either.
            if channel is None or before is not None:
                return error if isinstance(error, ConnectFailed) else ConnectFailed(BUSY, timed_out=True)
        finally:
            self._opening.pop(peer, None)  # none if all were closed
            if channel is not None and not is_open:
                channel.abort()
        if channel is None or not is_open:
            self._not_before[peer] = time.monotonic() + REFUSED_S
            return None
        if before is not None:
            before.retire()  # the calls of a silent channel wait on, as the peer may be slow and not gone
        self._channels[peer] = channel
        return channel

    def _new(self) -> Channel:
        return Channel(self._opened, self._limits, self._lag, self._budget)


# --- the server's end -----------------------------------------------------------------------------------------------


class ChannelApp(Protocol):
    """A server that responds to the requests of channels."""

    def is_cancellable(self, path: str) -> bool | None:
        """Return whether a POST ends if its caller no longer waits; None if its path has no hot route."""
        ...

    async def answer_hot(self, call: RawRequest) -> tuple[Headers, RawResponse] | None:
        """Return the response to a POST, and all its headers; None if its path has no hot route."""
        ...


class Shared(Protocol):
    """What the connections of one server share."""

    server: str
    budget: CallbackBudget
    held_bytes: int

    @property
    def is_full(self) -> bool:
        """Whether the requests in flight hold more bytes than the server allows."""
        ...


@dataclass(slots=True, eq=False)
class _Served:
    """A request that is not answered yet."""

    task: asyncio.Task[None]
    path: str
    size: int
    streams: bool = False
    """Whether it is cancelled whatever its route: it waits for a stream."""


class ServedChannel(FrameProtocol):
    def __init__(
        self,
        app: ChannelApp,
        shared: Shared,
        connections: MutableSet[Any],
        tasks: MutableSet[asyncio.Task[None]],
        caller: Caller | None = None,
    ) -> None:
        """`connections`, `tasks`: what the server waits for when it stops. `caller`: the client, if it has a limit."""
        super().__init__(MAX_REQUEST_BYTES + MAX_HEAD_BYTES + 4096)
        self._app = app
        self._shared = shared
        self._connections = connections
        self._all_tasks = tasks
        self._caller = caller
        self._tasks: dict[int, _Served] = {}
        self._unwanted: set[int] = set()
        self._stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.set_write_buffer_limits(MAX_UNREAD_BYTES)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self._connections.discard(self)
        for number in list(self._tasks):
            self._shared.budget.run(self._cancel, number)

    def pause_writing(self) -> None:
        """Called when the client reads too little of what is sent. Until it does, it cannot cancel requests, either."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def shutdown(self) -> None:
        """Close the channel once the requests that have arrived are answered."""
        self._stopping = True
        self._shared.budget.run(self._close_if_done)

    def _close_if_done(self) -> None:
        if not self._tasks:
            self._loop.call_soon(self._transport.close)  # after what is written in this iteration

    def on_frame(self, number: int, kind: int, status: int, head: bytes, body: bytes) -> None:
        if kind == REQUEST:
            self._shared.budget.run(self._start, number, head, body)
        elif kind == CANCEL:
            self._shared.budget.run(self._cancel, number)  # after the start of the request

    def _start(self, number: int, head: bytes, body: bytes) -> None:
        if self.closed or number in self._tasks:
            return
        if self._shared.is_full or (self._caller is not None and not self._caller.admits(len(body))):
            self.write(number, NOT_SERVED, FULL)  # over HTTP, the listener rejects it
            return
        path, query, headers = _request_head(head)
        self._shared.held_bytes += len(body)
        if self._caller is not None:
            self._caller.add(1, len(body))
        task = self._loop.create_task(self._serve(number, RawRequest(path, headers, body, query)))
        self._tasks[number] = _Served(task, path, len(body))
        self._all_tasks.add(task)

    def _end(self, number: int, served: _Served) -> None:
        """Forget a request; idempotent."""
        if self._tasks.get(number) is not served:
            return
        del self._tasks[number]
        self._shared.held_bytes -= served.size
        if self._caller is not None:
            self._caller.add(-1, -served.size)
        self._unwanted.discard(number)
        self._all_tasks.discard(served.task)
        if self._stopping:
            self.shutdown()

    def _cancel(self, number: int) -> None:
        """End a request whose caller no longer waits, if its route allows it; otherwise drop its response."""
        served = self._tasks.get(number)
        if served is not None and number not in self._unwanted:
            self._unwanted.add(number)
            if served.streams or self._app.is_cancellable(served.path):
                # A task that is cancelled before its first step does not run `_serve`, which calls `_end`.
                served.task.add_done_callback(lambda _: self._end(number, served))
                served.task.cancel()

    async def _serve(self, number: int, call: RawRequest) -> None:
        try:
            if (answer := await self._app.answer_hot(call)) is None:
                self.write(number, NOT_SERVED)
            else:
                await self._send(number, *answer)
        except asyncio.CancelledError:
            if number not in self._unwanted:
                raise
        except Exception:
            log.exception("%s%s failed while it responded", self._shared.server, call.path)
            self.write(number, BROKEN)
        finally:
            self._end(number, self._tasks[number])

    async def _send(self, number: int, headers: Headers, response: RawResponse) -> None:
        """Write the response. Raises ValueError for a header that HTTP does not allow, InvalidResponse if too large."""
        body = response.body
        if response.stream is not None:
            if number in self._unwanted:
                return
            self._tasks[number].streams = True
            body = await joined(response.stream)
        head = header_lines(headers) if response.headers else _common_lines(tuple(headers))
        if len(head) + len(body) > MAX_RESPONSE_BYTES:
            raise InvalidResponse(f"the response is larger than {MAX_RESPONSE_BYTES} bytes")
        self.write(number, RESPONSE, response.status, head, body)


_common_lines = lru_cache(maxsize=1024)(header_lines)
"""For responses without headers of their own, such as the cookie of a session."""


def _request_head(head: bytes) -> tuple[str, bytes, Mapping[bytes, bytes]]:
    """Return the path, the query and the headers by lower-case name."""
    if len(head) > MAX_COMMON_BYTES:
        return _parsed_head(head)
    if (at := head.rfind(_TRACE)) < 0:
        return _shared_head(head)
    # It differs from call to call, and follows the headers that the calls of a session share.
    path, query, headers = _shared_head(head[:at])
    return path, query, {**headers, **_headers(head[at:])}


def _parsed_head(head: bytes) -> tuple[str, bytes, Mapping[bytes, bytes]]:
    target, _, lines = head.partition(b"\r\n")
    path, _, query = target.partition(b"?")
    return unquote(path.decode("latin-1")), query, _headers(lines)


_shared_head = lru_cache(maxsize=1 << 14)(_parsed_head)  # more than the sessions of a server at once


def _headers(lines: bytes) -> dict[bytes, bytes]:
    pairs = [line.partition(b": ") for line in lines.split(b"\r\n") if line]
    return {name.lower(): value for name, _, value in pairs}
