"""Wire: HTTP/1.1 requests over plain kept-alive connections, for a fifth of the CPU that a general client takes.

What it does not do, aiohttp does in its place (general.py): TLS, proxies, streams, methods other than GET and POST.
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
"""Names a request; the answer repeats it, so that an answer that came late is never taken for the next one's."""


class InvalidHeader(ValueError):
    """A header that cannot be sent."""


@dataclass(frozen=True, slots=True)
class Target:
    """An address, taken apart."""

    host: str
    port: int
    request: str
    """Path and query, as they stand in the first line of a request."""
    named: str
    """The Host header."""


@lru_cache(maxsize=4096)
def target_of(url: str) -> Target | None:
    """The address taken apart; None for one that is not for us. Raises ValueError for one that is none."""
    parsed = URL(url)
    if parsed.scheme != "http" or not parsed.raw_host or not parsed.port or parsed.raw_user:
        return None
    return Target(parsed.raw_host, parsed.port, parsed.raw_path_qs or "/", parsed.raw_authority)


class ConnectionPool:
    """Connections to any number of peers, each used again as soon as its answer is there."""

    def __init__(self, keepalive_s: float, dialer: Dialer, limits: Limits, lag: LoopLag) -> None:
        self._keepalive_s = keepalive_s
        self._dialer = dialer
        self._limits = limits
        self._lag = lag
        self._gate = CallbackBudget()
        self._idle: dict[tuple[str, int], list[tuple[Connection, float]]] = {}
        self._open: set[Connection] = set()

    async def send(
        self,
        method: str,
        target: Target,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
        mark: tuple[str, str] | None = None,
    ) -> ReceivedResponse:
        """One request and its answer. Raises InvalidHeader, ConnectFailed, TimeoutError, or OSError when it broke.

        Cancelling hangs up. A request is sent once: over a kept connection that just closed it is lost, not repeated.
        `mark`: the request's id, and the name of a header by which the peer is known to be one that repeats it.
        """
        # Written first: what cannot be sent must not cost a connection.
        head = _head(method, target, len(body), headers, mark)
        connection = self._kept(target)
        if connection is None:
            begun = self._lag.lived()
            connection = await self._dialer.dial(target.host, target.port, self._new, timeout_s)
            timeout_s -= self._lag.lived() - begun
        try:
            reply = await connection.exchange(head, body, timeout_s)
            if mark is not None and mark[1] in reply.headers and reply.headers.get(REQUEST_HEADER) != mark[0]:
                connection.hang_up()
                raise InvalidResponse("the answer is to another request")
            return reply
        finally:
            self._give_back(target, connection)

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in list(self._open):
            connection.hang_up()
        self._idle.clear()

    def _new(self) -> Connection:
        return Connection(self._open, self._limits, self._lag, self._gate)

    def _give_back(self, target: Target, connection: Connection) -> None:
        """Keep a connection for the next request if it may carry one, else close it."""
        if connection.reusable:
            self._idle.setdefault((target.host, target.port), []).append((connection, time.monotonic()))
        else:
            connection.hang_up()

    def _kept(self, target: Target) -> Connection | None:
        """The connection that was used last, because it is the likeliest to be there still."""
        idle = self._idle.get((target.host, target.port))
        if not idle:
            return None
        oldest = time.monotonic() - self._keepalive_s
        while idle and idle[0][1] < oldest:
            idle.pop(0)[0].hang_up()
        while idle:
            connection, _ = idle.pop()
            if connection.quiet:
                return connection
            connection.hang_up()
        return None


def _head(method: str, target: Target, length: int, headers: Mapping[str, str], mark: tuple[str, str] | None) -> bytes:
    """First line and headers. Raises InvalidHeader."""
    lines = [f"{method} {target.request} HTTP/1.1", f"Host: {target.named}"]
    if length or method != "GET":
        lines.append(f"Content-Length: {length}")
    if mark is not None:
        lines.append(f"{REQUEST_HEADER}: {mark[0]}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise InvalidHeader("a line break within a header")
    try:
        return head.encode("latin-1") + b"\r\n\r\n"
    except UnicodeEncodeError:
        name = next(name for name, value in headers.items() if not _is_latin(name + value))
        raise InvalidHeader(f"the header {name!r} holds characters that HTTP cannot carry") from None


def _is_latin(text: str) -> bool:
    return max(text, default="\0") <= "\xff"
