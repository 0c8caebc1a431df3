"""ConnectionPool: sends HTTP/1.1 requests over keep-alive connections.

It needs a fifth of the CPU time of a general-purpose client. `AiohttpClient` sends the requests that the pool does not
support: TLS, proxies, streams, and methods other than GET and POST.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from yarl import URL

from rollyard.services.http.callback_budget import CallbackBudget
from rollyard.services.http.connection import Connection
from rollyard.services.http.content_encoding import InvalidResponse
from rollyard.services.http.dialer import Dialer
from rollyard.services.http.limits import Limits
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.response_reader import ReceivedResponse

REQUEST_HEADER = "x-rollyard-request"
"""Header with the request's id. The response repeats the id.

A late response is therefore never mistaken for the response to the next request.
"""


class InvalidHeader(ValueError):
    """Raised when a request header contains characters that HTTP does not allow."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL that the pool supports."""

    host: str
    port: int
    request_target: str
    """Path and query, as they appear in the request line."""
    host_header: str
    """Value of the Host header."""


@lru_cache(maxsize=4096)
def target_of(url: str) -> Target | None:
    """Parse a URL. Returns None if the pool does not support it. Raises ValueError if it is invalid."""
    parsed = URL(url)
    if parsed.scheme != "http" or not parsed.raw_host or not parsed.port or parsed.raw_user:
        return None
    return Target(parsed.raw_host, parsed.port, parsed.raw_path_qs or "/", parsed.raw_authority)


class ConnectionPool:
    """Manages keep-alive connections to any number of peers. A connection is reused once its response is complete."""

    def __init__(
        self, keepalive_s: float, other_keepalive_s: float, dialer: Dialer, limits: Limits, lag: LoopLag
    ) -> None:
        """`keepalive_s` is for peers that send the header in `echo`, and `other_keepalive_s` for all others."""
        self._keepalive_s = keepalive_s
        self._other_keepalive_s = other_keepalive_s
        self._dialer = dialer
        self._limits = limits
        self._lag = lag
        self._budget = CallbackBudget()
        self._idle: dict[tuple[str, int], list[tuple[Connection, float]]] = {}
        """Connections with the time until which each may be used again."""
        self._open: set[Connection] = set()

    async def send(
        self,
        method: str,
        target: Target,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        echo: tuple[str, str] | None = None,
    ) -> ReceivedResponse:
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
            started = self._lag.now()
            connection = await self._dialer.dial(target.host, target.port, self._new, timeout_s)
            timeout_s -= self._lag.now() - started
        keepalive_s = self._other_keepalive_s
        try:
            response = await connection.exchange(head, body, timeout_s)
            if echo is not None and echo[1] in response.headers:
                if response.headers.get(REQUEST_HEADER) != echo[0]:
                    connection.abort()
                    raise InvalidResponse("the response belongs to a different request")
                keepalive_s = self._keepalive_s
            return response
        finally:
            self._give_back(target, connection, keepalive_s)

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()

    def _new(self) -> Connection:
        return Connection(self._open, self._limits, self._lag, self._budget)

    def _give_back(self, target: Target, connection: Connection, keepalive_s: float) -> None:
        """Return a reusable connection to the pool and close any other."""
        if connection.reusable:
            self._idle.setdefault((target.host, target.port), []).append((connection, time.monotonic() + keepalive_s))
        else:
            connection.abort()

    def _take_idle(self, target: Target) -> Connection | None:
        """Take the most recently used idle connection, which is the most likely to still be open."""
        idle = self._idle.get((target.host, target.port))
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


def _head(method: str, target: Target, length: int, headers: Mapping[str, str], echo: tuple[str, str] | None) -> bytes:
    """Return the request line and the headers. Raises InvalidHeader if a header contains invalid characters."""
    lines = [f"{method} {target.request_target} HTTP/1.1", f"Host: {target.host_header}"]
    if length or method != "GET":
        lines.append(f"Content-Length: {length}")
    if echo is not None:
        lines.append(f"{REQUEST_HEADER}: {echo[0]}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise InvalidHeader("a header contains a line break")
    try:
        return head.encode("latin-1") + b"\r\n\r\n"
    except UnicodeEncodeError:
        name = next(name for name, value in headers.items() if not _is_latin(name + value))
        raise InvalidHeader(f"the header {name!r} contains characters that HTTP does not allow") from None


def _is_latin(text: str) -> bool:
    return max(text, default="\0") <= "\xff"
