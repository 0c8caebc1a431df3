"""Listener: uvicorn's HTTP protocol with what it lacks: bounds on heads, bodies and the time that both may take.

A request's head must be whole within `head_s`, its body come at `body_bytes_a_s` once `body_grace_s` are over, and the
bodies that a server holds at a time fit into `bodies_bytes`. Refusals say so in a problem, then the connection closes.
An answer repeats the id of its request. Where thousands of requests come at once they are begun in turns, so that
/health and /metrics, which pass by that queue, are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.callback_budget import CallbackBudget
from rollyard.services.http.connection_pool import REQUEST_HEADER
from rollyard.services.http.limits import MIB, RUN_LIMITS, Limits
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.problem import named, problem_reply

log = logging.getLogger(__name__)

HEAD_END = b"\r\n\r\n"
LINGER_S = 2.0
"""A peer that was refused while it still sends reads the refusal before the connection closes."""
LOOK_EVERY_S = 1.0
ACCEPTED_A_TURN = 64
"""uvloop's own servers accept one connection in a turn of the loop: in a busy one the 4,000th waited 60 s."""
NO_ROOM_S = 0.5
"""Pause where the process has no file left for another connection."""


@dataclass(frozen=True)
class ListenerLimits:
    """What a server bears from its callers."""

    limits: Limits = RUN_LIMITS
    head_s: float = 20.0
    body_grace_s: float = 20.0
    body_bytes_a_s: float = 16 * 1024
    bodies_bytes: int = max(1024 * MIB, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    """All request bodies from their first byte to their answer's last: a quarter of the machine, 1 GiB at least."""


class Listener:
    """What the connections of one server share."""

    def __init__(self, server: str, bounds: ListenerLimits, lag: LoopLag) -> None:
        self.server = server
        self.bounds = bounds
        self.lag = lag
        self.gate = CallbackBudget()
        self.connections: set[BoundedProtocol] = set()
        self.held_bytes = 0
        self._sock: socket.socket | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._opening: set[asyncio.Task[Any]] = set()

    def start(self, sock: socket.socket, make: Callable[[], BoundedProtocol]) -> None:
        """Accept connections on `sock`, each with a protocol of its own, and look after them until `stop`."""
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._loop.add_reader(sock, self._accept)
        self._look()

    def stop(self) -> None:
        """Accept no more."""
        for timer in self._timers.values():
            timer.cancel()
        if self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._sock = None

    def _accept(self) -> None:
        assert self._sock is not None
        for _ in range(ACCEPTED_A_TURN):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("%s cannot accept a connection: %s", self.server, error.strerror or error)
                self._loop.remove_reader(self._sock)
                self._timers["accept"] = self._loop.call_later(
                    NO_ROOM_S, self._loop.add_reader, self._sock, self._accept
                )
                return
            sock.setblocking(False)
            opening = self._loop.create_task(self._loop.connect_accepted_socket(self._make, sock))
            self._opening.add(opening)
            opening.add_done_callback(self._opened)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled() and (error := opening.exception()) is not None:
            log.warning("%s lost a connection while it opened: %s", self.server, error)

    def _look(self) -> None:
        """End what has taken too long. Time in which this process itself was busy does not count."""
        now = self.lag.lived()
        for connection in list(self.connections):
            connection.look(now)
        self._timers["look"] = self._loop.call_later(LOOK_EVERY_S, self._look)


class BoundedProtocol(HttpToolsProtocol):
    """One connection of a caller."""

    def __init__(self, listener: Listener, **options: Any) -> None:
        super().__init__(**options)
        self._listener = listener
        self._head_since: float | None = listener.lag.lived()
        self._body_since: float | None = None
        self._refused_since: float | None = None
        self._silent = 0
        self._body_bytes = 0
        self._refusal: Failure | None = None
        self._upgrading = False
        """The parser takes the request at hand for a switch to another protocol, and has not read its body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller connected."""
        super().connection_made(transport)
        self._listener.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._listener.connections.discard(self)
        self._let_go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The next bytes of a head or a body."""
        if self._refused_since is not None:
            return
        if self._head_since is None and (self.cycle is None or self.cycle.response_complete):
            self._head_since = self._listener.lag.lived()
        self._silent += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._silent > self._listener.bounds.limits.head_bytes and self._refused_since is None:
            self._refuse(self._too_long())

    def _feed(self, data: bytes) -> None:
        """Read a request that offers another protocol as the plain request that it is, too (RFC 9110, 7.8): some
        clients offer h2c with every request, and what follows the head is its body, not a new request.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                if not self._upgrading:  # CONNECT, which stays unanswered
                    return
                self._upgrading = False
                kept = [(name, value) for name, value in self.headers if name != b"upgrade"]
                lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
                lines += [b"%b: %b" % pair for pair in kept]
                data = b"\r\n".join(lines) + HEAD_END + data[offered.args[0] :]
                self.parser = httptools.HttpRequestParser(self)

    def send_400_response(self, msg: str) -> None:
        """The parser gave up: it found no HTTP, or one of the bounds was passed."""
        self._refuse(self._refusal or Failure(FailureKind.BAD_REQUEST, msg))

    def look(self, now: float) -> None:
        """Close the connection when it is late."""
        bounds = self._listener.bounds
        if self._refused_since is not None:
            if now - self._refused_since > LINGER_S:
                self.transport.abort()
        elif self._head_since is not None:
            if now - self._head_since > bounds.head_s:
                self.transport.abort()
        elif self._body_since is not None:
            if self.flow.read_paused:  # the server itself is not ready to read on
                self._body_since = now
            elif now - self._body_since > bounds.body_grace_s + self._body_bytes / bounds.body_bytes_a_s:
                told = f"the body came too slowly: {self._body_bytes} bytes in {now - self._body_since:.0f} s"
                self._refuse(Failure(FailureKind.BAD_REQUEST, told, status=408))

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A first line."""
        if self._head_since is None:
            self._head_since = self._listener.lag.lived()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is whole; what was fed of it, and of a body behind it, is counted in `_silent`."""
        self._upgrading = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._upgrading:
            return
        limits = self._listener.bounds.limits
        if self._silent > limits.head_bytes:
            head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if head_bytes > limits.head_bytes:
                self._give_up(self._too_long())
        if len(self.headers) > limits.headers:
            told = f"the request has more than {limits.headers} headers"
            self._give_up(Failure(FailureKind.BAD_REQUEST, told, status=431))
        self._silent = 0
        mark = None
        for name, value in self.headers:
            if name == b"content-length" and value.isdigit() and int(value) > limits.body_bytes:
                self._give_up(self._too_large())
            elif name == b"x-rollyard-request":
                mark = value
        self._head_since = None
        self._body_since = self._listener.lag.lived()
        self._let_go()
        super().on_headers_complete()
        if mark is not None and self.cycle is not None:
            self.cycle.default_headers = [*self.cycle.default_headers, (REQUEST_HEADER.encode(), mark)]

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. One that comes behind the body says nothing of the request: it was let in by those before it."""
        if self._body_since is None:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._silent = 0
        self._body_bytes += len(body)
        listener = self._listener
        listener.held_bytes += len(body)
        if self._body_bytes > listener.bounds.limits.body_bytes:
            self._give_up(self._too_large())
        if listener.held_bytes > listener.bounds.bodies_bytes:
            told = f"the requests in flight hold more than {listener.bounds.bodies_bytes} bytes; try again later"
            self._give_up(Failure(FailureKind.OVERLOADED, told))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        if self._upgrading:
            return
        self._silent = 0
        self._body_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is away."""
        self._let_go()
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if cycle.scope["method"] == "POST":
            self._listener.gate.enter(super()._start_asgi_task, cycle, app)
        else:
            super()._start_asgi_task(cycle, app)

    def _give_up(self, failure: Failure) -> None:
        self._refusal = failure
        raise httptools.HttpParserError(failure.problem.detail)  # ends the parser; it calls send_400_response

    def _let_go(self) -> None:
        self._listener.held_bytes -= self._body_bytes
        self._body_bytes = 0

    def _too_long(self) -> Failure:
        limit = self._listener.bounds.limits.head_bytes
        return Failure(FailureKind.BAD_REQUEST, f"the headers are larger than {limit} bytes", status=431)

    def _too_large(self) -> Failure:
        limit = self._listener.bounds.limits.body_bytes
        return Failure(FailureKind.BAD_REQUEST, f"the body is larger than {limit} bytes", status=413)

    def _refuse(self, failure: Failure) -> None:
        """Answer with the failure if nothing was answered yet, and close; what still comes is not read."""
        if self._refused_since is not None or self.transport.is_closing():
            return
        self._refused_since = self._listener.lag.lived()
        self._head_since = self._body_since = None
        log.warning("%s refused a request: %s", self._listener.server, failure.problem.detail)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering and self.cycle.response_started:
            self.transport.abort()
            return
        if answering:
            self.cycle.disconnected = True  # for whoever reads its body
            self.cycle.message_event.set()
        reply = problem_reply(named(failure, self._listener.server, ""))
        headers = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        head = STATUS_LINE[reply.status] + headers % (reply.content_type, len(reply.body))
        self.transport.write(head + reply.body)
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()
