"""Listener: uvicorn's HTTP protocol with limits on the size of headers and bodies and on the time they take.

A request's headers must be complete within `head_s`. After `body_grace_s`, its body must arrive at `body_bytes_per_s`
or faster, and all bodies that a server holds in memory must fit in `bodies_bytes`. A rejected request receives a
problem response, and its connection is closed. Each response repeats the id of its request. When thousands of POSTs
arrive at once, only a few start in each iteration of the event loop; GET requests, such as those for /health and
/metrics, skip that queue.

Plain POSTs to the hot routes of a `HotApp` bypass ASGI: the complete body is passed to the app, and its response is
written at once. uvicorn serves all other requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.services.http.access import PEER, Peers
from rollyard.services.http.callers import Caller, Callers
from rollyard.services.http.channel import ACCEPTED, UPGRADE, ChannelApp, ServedChannel
from rollyard.services.http.connection_pool import MIB, REQUEST_HEADER, RUN_LIMITS, CallbackBudget, HttpLimits
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import (
    Headers,
    RawRequest,
    RawResponse,
    Scope,
    SendResponse,
    header_lines,
    problem_response,
    to_problem,
)
from rollyard.services.http.tls import ServerCertificate

log = logging.getLogger(__name__)

HEAD_END = b"\r\n\r\n"
_TARGET = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
LINGER_S = 2.0
"""How long to keep a rejected connection open, so that a peer that is still sending can read the response."""
CHECK_EVERY_S = 1.0
WARN_EVERY_S = 1.0
ACCEPTS_PER_ITERATION = 64
"""uvloop's own servers accept only one per iteration; on a busy loop, the 4,000th connection had to wait 60 s."""
ACCEPT_RETRY_S = 0.5
"""Pause after a failed accept, which usually means that the process has run out of file descriptors."""
HANDSHAKE_S = 20.0
"""Time for the first bytes and the TLS handshake of a connection."""
TLS_HANDSHAKE = b"\x16"
"""First byte of a connection that uses TLS."""


@dataclass(frozen=True)
class ListenerLimits:
    limits: HttpLimits = RUN_LIMITS
    head_s: float = 20.0
    body_grace_s: float = 20.0
    body_bytes_per_s: float = 16 * 1024
    bodies_bytes: int = max(1024 * MIB, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4)
    """Maximum total size of the bodies of requests in flight: a quarter of the host's memory, but at least 1 GiB."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is already listening, so no other process can take the port. Raises OSError on failure."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio, unlike uvloop, sets TCP_NODELAY only if the protocol is given; without it responses take 40 ms longer.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(4096)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


class HotApp(ChannelApp, Protocol):
    """An app with routes that are served without ASGI messages, which take half of the time of a short request."""

    @property
    def run_header(self) -> tuple[bytes, bytes]:
        """The header that all responses of this run's servers carry."""
        ...

    def admits(self, scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request may be served; ASGI rejects any other."""
        ...

    def has_run_token(self, authorization: bytes) -> bool:
        """Return whether the value of this header has the run's token."""
        ...

    async def serve_hot(self, call: RawRequest, send: SendResponse) -> None: ...


class RareWarnings:
    """Logs what any client can cause: one line a second, so that none can fill the disk."""

    def __init__(self, lag: LoopLag) -> None:
        self._lag = lag
        self._not_before = -math.inf
        self._left_out = 0

    def log(self, text: str) -> None:
        if (now := self._lag.now()) < self._not_before:
            self._left_out += 1
            return
        log.warning("%s%s", text, f" ({self._left_out} more since the last line)" if self._left_out else "")
        self._not_before, self._left_out = now + WARN_EVERY_S, 0


class Acceptor:
    """Accepts the connections of a server, over TLS if it has a certificate."""

    def __init__(self, server: str, warnings: RareWarnings, certificate: ServerCertificate | None = None) -> None:
        self._server = server
        self._warnings = warnings
        self._certificate = certificate
        self._sock: socket.socket | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._accepting: set[asyncio.Task[Any]] = set()

    def start(self, sock: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections on `sock` until `stop` is called. `make` creates the protocol for each connection."""
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._loop.add_reader(sock, self._accept)
        if self._certificate is not None:
            self._renew(self._certificate)

    def stop(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        if self._sock is not None:
            self._loop.remove_reader(self._sock)
            self._sock = None
        if self._certificate is not None:  # clients may take long to shake hands
            for accepting in self._accepting:
                accepting.cancel()

    def _accept(self) -> None:
        assert self._sock is not None
        for _ in range(ACCEPTS_PER_ITERATION):
            try:
                sock, _ = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("%s cannot accept a connection: %s", self._server, error.strerror or error)
                self._loop.remove_reader(self._sock)
                self._timers["accept"] = self._loop.call_later(
                    ACCEPT_RETRY_S, self._loop.add_reader, self._sock, self._accept
                )
                return
            sock.setblocking(False)
            connecting: Coroutine[Any, Any, Any]
            if self._certificate is None:
                connecting = self._loop.connect_accepted_socket(self._make, sock)
            else:
                connecting = self._accept_tls(sock, self._certificate)
            accepting = self._loop.create_task(connecting)
            self._accepting.add(accepting)
            accepting.add_done_callback(self._on_accepted)

    async def _accept_tls(self, sock: socket.socket, certificate: ServerCertificate) -> None:
        """Shake hands with a client, or explain to one that speaks plain HTTP that this server does not."""
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                first = await self._first_byte(sock)
                if first == TLS_HANDSHAKE:
                    await self._loop.connect_accepted_socket(self._make, sock, ssl=certificate.context)
                elif first:
                    await self._loop.connect_accepted_socket(partial(_PlainRefusal, self._server), sock)
                else:
                    sock.close()
        except (ConnectionError, TimeoutError):  # it left, or takes too long
            sock.close()
        except BaseException:
            sock.close()
            raise

    async def _first_byte(self, sock: socket.socket) -> bytes:
        """Return the first byte of a connection without reading it; none if the client has closed it."""
        readable = self._loop.create_future()
        self._loop.add_reader(sock, lambda: None if readable.done() else readable.set_result(None))
        try:
            await readable
        finally:
            self._loop.remove_reader(sock)
        return sock.recv(1, socket.MSG_PEEK)

    def _renew(self, certificate: ServerCertificate) -> None:
        certificate.renew()
        self._timers["renew"] = self._loop.call_later(CHECK_EVERY_S, self._renew, certificate)

    def _on_accepted(self, accepting: asyncio.Task[Any]) -> None:
        self._accepting.discard(accepting)
        if not accepting.cancelled() and (error := accepting.exception()) is not None:
            reason = str(error) or type(error).__name__
            self._warnings.log(f"{self._server} lost a connection while accepting it: {reason}")


class _PlainRefusal(asyncio.Protocol):
    """Responds to plain HTTP on the port of a server that uses TLS."""

    def __init__(self, server: str) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast(asyncio.Transport, transport)  # uvloop's transport has the interface but not the type
        failure = Failure(FailureKind.BAD_REQUEST, "this server uses TLS: call it with https:// instead of http://")
        plain.write(_refusal_bytes(problem_response(to_problem(failure, self._server, "")), []))
        plain.write_eof()
        # Not at once: unread data of the client would discard the response.
        asyncio.get_running_loop().call_later(LINGER_S, plain.abort)


class Listener:
    """Accepts a server's connections and enforces the limits that they share."""

    def __init__(
        self,
        server: str,
        bounds: ListenerLimits,
        lag: LoopLag,
        app: HotApp | None = None,
        certificate: ServerCertificate | None = None,
        callers: Callers | None = None,
    ) -> None:
        """`callers`: what each client may use at once; None: no limit."""
        self.server = server
        self.app = app
        self.bounds = bounds
        self.lag = lag
        self.budget = CallbackBudget()
        self.callers = callers
        self.connections: set[BoundedProtocol] = set()
        self.held_bytes = 0
        """Total size of the bodies of requests in flight."""
        self.warnings = RareWarnings(lag)
        self._acceptor = Acceptor(server, self.warnings, certificate)
        self._checking: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        return self.held_bytes > self.bounds.bodies_bytes

    def start(self, sock: socket.socket, make: Callable[[], BoundedProtocol]) -> None:
        """Accept connections on `sock` until `stop` is called. `make` creates the protocol for each connection."""
        self._loop = asyncio.get_running_loop()
        self._acceptor.start(sock, make)
        self._check_deadlines()

    def stop(self) -> None:
        self._acceptor.stop()
        if self._checking is not None:
            self._checking.cancel()

    def _check_deadlines(self) -> None:
        """Close connections that take too long. Time during which the event loop was blocked does not count."""
        now = self.lag.now()
        for connection in list(self.connections):
            connection.check_deadlines(now)
        self._checking = self._loop.call_later(CHECK_EVERY_S, self._check_deadlines)


class Exchange:
    """One request to a hot route. It has what uvicorn reads of the RequestResponseCycle of all other requests."""

    __slots__ = (
        *("call", "cancellable", "default_headers", "disconnected", "keep_alive", "pieces"),
        *("response_complete", "response_started", "task"),
    )

    def __init__(self, call: RawRequest, cancellable: bool) -> None:
        self.call = call
        self.cancellable = cancellable
        self.pieces: list[bytes] = []
        self.default_headers: Headers = []
        self.task: asyncio.Task[None] | None = None
        self.disconnected = False
        self.keep_alive = True
        self.response_started = False
        self.response_complete = False

    @property
    def message_event(self) -> Exchange:
        return self

    def set(self) -> None:
        """Called after `disconnected` has changed."""
        if self.disconnected and self.cancellable and self.task is not None:
            self.task.cancel()


class BoundedProtocol(HttpToolsProtocol):
    """A connection with limits, whose requests know the user at its other end."""

    def __init__(self, listener: Listener, *, peers: Peers, **options: Any) -> None:
        super().__init__(**options)
        self._listener = listener
        self._peers = peers
        self._head_since: float | None = listener.lag.now()
        self._body_since: float | None = None
        self._refused_since: float | None = None
        self._unparsed_bytes = 0
        self._body_bytes = 0
        self._refusal: Failure | None = None
        self._upgrading = False
        """True if the parser treats the current request as a protocol switch and has not parsed its body."""
        self._exchange: Exchange | None = None
        """The current request, if it is to a hot route."""
        self._client: Caller | None = None
        """The client of this connection, if it has a limit."""
        self._caller: Caller | None = None
        """The same for the current request; None if it carries the run's token."""
        self._admitted = 0
        """Requests of the caller that this connection counts: those whose handler has not started."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._listener.connections.add(self)
        uid = self._peers.owner(transport)
        self.app_state = {**self.app_state, PEER: uid}
        if (callers := self._listener.callers) is not None:
            peer = transport.get_extra_info("peername")
            address = str(peer[0]) if isinstance(peer, tuple) else "with an unknown address"
            self._client = callers.get(uid, address)

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._release_body()
        if self._client is not None:
            self._client.requests -= self._admitted
            self._admitted = 0
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused_since is not None:
            return
        if self._head_since is None and (self.cycle is None or self.cycle.response_complete):
            self._head_since = self._listener.lag.now()
        self._unparsed_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._unparsed_bytes > self._listener.bounds.limits.header_bytes and self._refused_since is None:
            self._refuse(self._headers_too_large())

    def _feed(self, data: bytes) -> None:
        """Parse `data`. Of the offers to switch protocols (RFC 9110, 7.8), only that of a channel is accepted, and of
        a WebSocket where uvicorn has been given a library for it: some clients always offer h2c.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offered:
                if not self._upgrading:  # CONNECT, which gets no response
                    return
                self._upgrading = False
                if self._unparsed_bytes <= self._listener.bounds.limits.header_bytes and self._switch(
                    data[offered.args[0] :]
                ):
                    return
                headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
                lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
                lines += [b"%b: %b" % pair for pair in headers]
                data = b"\r\n".join(lines) + HEAD_END + data[offered.args[0] :]
                self.parser = httptools.HttpRequestParser(self)

    def _switch(self, rest: bytes) -> bool:
        """Hand the connection, and `rest` that followed, to the protocol that the client offers; return False if it
        has to stay as it is.
        """
        if self.pipeline or not (self.cycle is None or self.cycle.response_complete):
            return False
        if (b"upgrade", UPGRADE) in self.headers:
            return self._open_channel(rest)
        if not self._should_upgrade():
            return False
        self._listener.connections.discard(self)
        self.scope["method"] = self.parser.get_method().decode()
        self.handle_websocket_upgrade()
        return True

    def _open_channel(self, rest: bytes) -> bool:
        listener = self._listener
        if listener.app is None:
            return False
        self.scope["method"], self.scope["path"] = "GET", "/health"
        if not listener.app.admits(self.scope, dict(self.headers)):  # type: ignore[arg-type]
            return False
        channel = ServedChannel(listener.app, listener, self.connections, self.tasks, self._limited_caller())
        self.connections.discard(self)
        listener.connections.discard(self)
        self.transport.write(ACCEPTED)
        self.transport.set_protocol(channel)
        channel.connection_made(self.transport)
        if rest:
            channel.data_received(rest)
        return True

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is invalid HTTP or exceeds a limit. Called when parsing fails."""
        self._refuse(self._refusal or Failure(FailureKind.BAD_REQUEST, msg))

    def check_deadlines(self, now: float) -> None:
        bounds = self._listener.bounds
        if self._refused_since is not None:
            if now - self._refused_since > LINGER_S:
                self.transport.abort()
        elif self._head_since is not None:
            if now - self._head_since > bounds.head_s:
                self.transport.abort()
        elif self._body_since is not None:
            if self.flow.read_paused:  # the server is not ready to read more
                self._body_since = now
            elif now - self._body_since > bounds.body_grace_s + self._body_bytes / bounds.body_bytes_per_s:
                detail = f"the body arrived too slowly: {self._body_bytes} bytes in {now - self._body_since:.0f} s"
                self._refuse(Failure(FailureKind.BAD_REQUEST, detail, status=408))

    # --- called by the parser ---------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._head_since is None:
            self._head_since = self._listener.lag.now()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Check the complete headers. `_unparsed_bytes` also includes the part of the body that arrived with them."""
        self._upgrading = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._upgrading:
            self._use_target_host()
            return
        limits = self._listener.bounds.limits
        if self._unparsed_bytes > limits.header_bytes:
            header_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if header_bytes > limits.header_bytes:
                self._reject(self._headers_too_large())
        if len(self.headers) > limits.headers:
            detail = f"the request has more than {limits.headers} headers"
            self._reject(Failure(FailureKind.BAD_REQUEST, detail, status=431))
        self._unparsed_bytes = 0
        request_id = None
        for name, value in self.headers:
            if name == b"content-length" and value.isdigit() and int(value) > limits.body_bytes:
                self._reject(self._body_too_large())
            elif name == b"x-rollyard-request":
                request_id = value
        self._release_body()
        self._caller = self._client and self._limited_caller()
        if self._caller is not None:
            if failure := self._caller.request_refusal():
                self._reject(failure)
            self._caller.requests += 1
            self._admitted += 1
        self._head_since = None
        self._body_since = self._listener.lag.now()
        self._exchange = self._hot_exchange()
        if self._exchange is not None:
            self.cycle = self._exchange  # type: ignore[assignment]
        else:
            self._use_target_host()
            super().on_headers_complete()
        if request_id is not None and self.cycle is not None:
            self.cycle.default_headers = [*self.cycle.default_headers, (REQUEST_HEADER.encode(), request_id)]

    def _use_target_host(self) -> None:
        """Let the host of an absolute target replace the Host header (RFC 9112, 3.2.2)."""
        if not self.url.startswith(b"/") and (target := _TARGET.match(self.url)):
            self.headers[:] = [*(pair for pair in self.headers if pair[0] != b"host"), (b"host", target[1])]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are ignored, because the request was accepted on the basis of its headers."""
        if self._body_since is None:
            name = name.lower()
            self.expect_100_continue |= name == b"expect" and value.lower() == b"100-continue"
            self.headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self._exchange is None and self.cycle is not None and self.cycle.response_complete:
            return  # nobody reads it: the request has been refused or answered
        self._body_bytes += len(body)
        listener = self._listener
        listener.held_bytes += len(body)
        if self._caller is not None:
            self._caller.held_bytes += len(body)
            if failure := self._caller.body_refusal():
                self._reject(failure)
        if self._body_bytes > listener.bounds.limits.body_bytes:
            self._reject(self._body_too_large())
        if listener.is_full:
            detail = f"the requests in flight hold more than {listener.bounds.bodies_bytes} bytes; retry later"
            self._reject(Failure(FailureKind.OVERLOADED, detail))
        if self._exchange is not None:
            self._exchange.pieces.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self._unparsed_bytes = 0
        self._body_since = None
        if self._exchange is not None:
            self._listener.budget.run(self._start_exchange, self._exchange)
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called by uvicorn, for requests that are not to a hot route."""
        self._release_body()
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._client is not None and self._admitted:
            self._admitted -= 1
            app = _counted(app, self._client)
        if cycle.scope["method"] == "POST":
            self._listener.budget.run(super()._start_asgi_task, cycle, app)
        else:
            super()._start_asgi_task(cycle, app)

    # --- hot routes -------------------------------------------------------------------------------------------------

    def _hot_exchange(self) -> Exchange | None:
        """Return the exchange of a plain POST to a hot route; None for what uvicorn has to deal with."""
        app, parser = self._listener.app, self.parser
        if app is None or parser.get_method() != b"POST" or not self.url.startswith(b"/") or b"%" in self.url:
            return None
        is_plain = parser.get_http_version() == "1.1" and parser.should_keep_alive() and not self.expect_100_continue
        is_waiting = self.cycle is not None and not self.cycle.response_complete
        headers = dict(self.headers)
        if not is_plain or is_waiting or self.pipeline or len(headers) != len(self.headers):
            return None
        path, _, query = self.url.partition(b"#")[0].partition(b"?")
        self.scope["method"], self.scope["path"] = "POST", path.decode("ascii")
        cancellable = app.is_cancellable(self.scope["path"])
        if cancellable is None or not app.admits(self.scope, headers):  # type: ignore[arg-type]
            return None
        return Exchange(RawRequest(self.scope["path"], headers, b"", query), cancellable)

    def _start_exchange(self, exchange: Exchange) -> None:
        exchange.call.body = exchange.pieces[0] if len(exchange.pieces) == 1 else b"".join(exchange.pieces)
        exchange.task = self.loop.create_task(self._serve_hot(exchange))
        self.tasks.add(exchange.task)
        exchange.task.add_done_callback(self.tasks.discard)
        if self._caller is not None:
            # The request counts until its handler ends, also if the client no longer waits.
            if self._admitted:
                self._admitted -= 1
            else:  # the connection was lost in the meantime
                self._caller.requests += 1
            exchange.task.add_done_callback(self._caller.end_request)

    async def _serve_hot(self, exchange: Exchange) -> None:
        assert self._listener.app is not None
        try:
            await self._listener.app.serve_hot(exchange.call, partial(self._send_hot, exchange))
        except asyncio.CancelledError:
            if not exchange.disconnected:
                raise
        except Exception:
            log.exception("%s%s failed while it responded", self._listener.server, exchange.call.path)
            self.transport.close()

    async def _send_hot(self, exchange: Exchange, status: int, headers: Headers, response: RawResponse) -> None:
        """Write the response. Raises ValueError for a header that HTTP does not allow."""
        if self.flow.write_paused:
            await self._writable(exchange)
        if exchange.disconnected:
            return
        exchange.response_started = True
        head = header_lines([*exchange.default_headers, *headers])
        if not exchange.keep_alive:
            head += b"connection: close\r\n"
        if response.stream is None:
            head += b"content-length: %d\r\n" % len(response.body)
        else:
            head += b"transfer-encoding: chunked\r\n"
        if response.stream is None:
            self.transport.writelines((STATUS_LINE[status], head, b"\r\n", response.body))
        else:
            self.transport.writelines((STATUS_LINE[status], head, b"\r\n"))
            exchange.cancellable = True
            async with contextlib.aclosing(response.stream) as pieces:  # type: ignore[type-var]
                async for piece in pieces:
                    await self._writable(exchange)
                    if piece:
                        self.transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
            self.transport.write(b"0\r\n\r\n")
        exchange.response_complete = True
        if not exchange.keep_alive:
            self.transport.close()
        self._release_body()
        super().on_response_complete()

    async def _writable(self, exchange: Exchange) -> None:
        if self.flow.write_paused and not exchange.disconnected:
            await self.flow.drain()

    def _reject(self, failure: Failure) -> None:
        self._refusal = failure
        raise httptools.HttpParserError(failure.problem.detail)  # ends the parser; it calls send_400_response

    def _limited_caller(self) -> Caller | None:
        """Return the client of the current request; None if it has no limit, as all that have the run's token."""
        app, authorization = self._listener.app, dict(self.headers).get(b"authorization", b"")
        return None if app is not None and app.has_run_token(authorization) else self._client

    def _release_body(self) -> None:
        self._listener.held_bytes -= self._body_bytes
        if self._caller is not None:
            self._caller.held_bytes -= self._body_bytes
        self._body_bytes = 0

    def _headers_too_large(self) -> Failure:
        limit = self._listener.bounds.limits.header_bytes
        return Failure(FailureKind.BAD_REQUEST, f"the headers are larger than {limit} bytes", status=431)

    def _body_too_large(self) -> Failure:
        limit = self._listener.bounds.limits.body_bytes
        return Failure(FailureKind.BAD_REQUEST, f"the body is larger than {limit} bytes", status=413)

    def _refuse(self, failure: Failure) -> None:
        """Respond with the failure unless a response has started, then close the connection. Ignore further data."""
        if self._refused_since is not None or self.transport.is_closing():
            return
        self._refused_since = self._listener.lag.now()
        if self._exchange is not None and self._body_since is not None:  # no handler will read what has arrived
            self._exchange.pieces.clear()
        self._release_body()
        self._head_since = self._body_since = None
        self._listener.warnings.log(f"{self._listener.server} refused a request: {failure.problem.detail}")
        responding = self.cycle is not None and not self.cycle.response_complete
        if responding and self.cycle.response_started:
            self.transport.abort()
            return
        if responding:
            self.cycle.disconnected = True  # for a handler that still reads the body
            self.cycle.message_event.set()
        response = problem_response(to_problem(failure, self._listener.server, ""))
        headers = [] if self._listener.app is None else [self._listener.app.run_header]
        headers += [pair for pair in self.headers or () if pair[0] == REQUEST_HEADER.encode()]
        self.transport.write(_refusal_bytes(response, headers))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


def _counted(app: ASGIApp, caller: Caller) -> ASGIApp:
    """Return an app whose request counts until its handler ends, also if the client no longer waits."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        finally:
            caller.end_request(None)

    return serve


def _refusal_bytes(response: RawResponse, headers: Headers) -> bytes:
    """Return the response, after which the connection ends, as it is sent."""
    all_headers = [(b"content-type", response.content_type), (b"connection", b"close"), *headers, *response.headers]
    length = b"content-length: %d\r\n\r\n" % len(response.body)
    return STATUS_LINE[response.status] + header_lines(all_headers) + length + response.body


class SignalFreeServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process decides when to stop, and may host several servers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(
    app: ASGIApp, sock: socket.socket, certificate: ServerCertificate | None = None, **settings: Any
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve the app on the socket while the block runs, and close it; yield the task that serves, which ends early only
    if it fails.

    Each request knows the user of its connection (`Peers`). `settings`: those of uvicorn, such as `ws` and `lifespan`.
    Raises RunError if the app cannot start.
    """
    peers, lag = Peers(), LoopLag()
    peers.open()
    config = uvicorn.Config(
        app,
        http="httptools",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        **settings,
    )
    server = SignalFreeServer(config)
    listener = Listener("the server", ListenerLimits(), lag, certificate=certificate)
    serving = asyncio.create_task(server.serve(sockets=[]))  # no sockets: `listener` accepts
    try:
        while not server.started:
            if serving.done():
                serving.result()
                raise RunError("the server stopped while it was starting; the log above says why")
            await asyncio.sleep(0.02)
        lag.start()
        state = {"server_state": server.server_state, "app_state": server.lifespan.state}
        listener.start(sock, partial(BoundedProtocol, listener, config=config, peers=peers, **state))
        yield serving
    finally:
        listener.stop()
        lag.stop()
        sock.close()
        server.should_exit = True
        await serving
        peers.close()
