"""The seam: how bytes reach a server. Over the network, or straight into an app of this process.

Only set-up errors of a connection are told apart from later ones: the first may be tried again by anybody, the
second never, because the other side may have acted already.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.aiohttp_client import GeneralClient
from rollyard.services.http.connection_pool import ConnectionPool, InvalidHeader, target_of
from rollyard.services.http.dialer import ConnectFailed, Dialer
from rollyard.services.http.limits import ENDPOINT_LIMITS, RUN_LIMITS, Limits
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.proxies import NO_PROXIES, Proxies

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

RUN_HEADER = "x-rollyard-run"
CONNECT_TIMEOUT_S = 5.0
"""A loopback or cluster peer that has not accepted by then is down, or too busy to accept."""
CONNECT_TIMED_OUT = "connect_timeout"
"""The code of the failure: the peer was silent. One that is not there refuses."""
KEEPALIVE_S = 15.0
"""Well under the servers' own 75 s: a pooled connection is never one that the peer is just closing."""
_WIRED = ("GET", "POST")
"""Whole answers to these, from plain addresses without a proxy, come over http/wire.py; the rest over aiohttp."""
_BROKEN = (aiohttp.ClientError, TimeoutError, ValueError, OSError)
"""What a request raises that got no whole answer."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole answer: status, headers (case-insensitive by lower-case keys where we made them), body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()
    """Every `Set-Cookie` value as it came."""


class Transport(Protocol):
    """Sends one request and returns its answer; raises `Failure` when there is none."""

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        """The answer of any status. Raises Failure: unreachable, connection_lost, timeout."""
        ...

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        """The answer's head (its `body` is empty), and its body piece by piece, which may raise what `send` does.

        `timeout_s` holds for the whole of it. Closing the pieces hangs up.
        """
        ...

    async def close(self) -> None:
        """Give the connections back."""
        ...


@lru_cache(maxsize=4096)
def _parsed(url: str) -> URL:
    return URL(url)


class HttpTransport:
    """Plain connections where they suffice, a general client for the rest.

    As it stands it is for servers of the run, which no proxy ever leads to; `endpoint_transport` makes the one for
    engines and hosted APIs.
    """

    def __init__(self, limits: Limits = RUN_LIMITS, proxies: Proxies = NO_PROXIES, lag: LoopLag | None = None) -> None:
        self._lag = lag or LoopLag()
        self._proxies = proxies
        self._pool = ConnectionPool(KEEPALIVE_S, Dialer(CONNECT_TIMEOUT_S, self._lag), limits, self._lag)
        self._general_client = GeneralClient(KEEPALIVE_S, CONNECT_TIMEOUT_S, limits, self._lag)
        self._numbers = itertools.count(1)

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        """See `Transport.send`."""
        self._lag.start()
        try:
            proxy = self._proxies.of_address(_parsed(url)) if self._proxies.by_scheme else None
            if proxy is None and method in _WIRED and (target := target_of(url)) is not None:
                # A server of the run shows itself by the run's header, and then repeats the request's id.
                mark = (f"{next(self._numbers):x}", RUN_HEADER) if RUN_HEADER in headers else None
                reply = await self._pool.send(method, target, body, headers, timeout_s, mark)
            else:
                reply = await self._general_client.send(method, _parsed(url), body, headers, timeout_s, proxy)
            return HttpResponse(reply.status, reply.headers, reply.body, _cookies(reply.headers))
        except _BROKEN as error:
            raise _failure(error, url, timeout_s) from error

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        """See `Transport.stream`."""
        self._lag.start()
        try:
            proxy = self._proxies.of_address(_parsed(url))
            status, found, pieces = await self._general_client.stream(
                method, _parsed(url), body, headers, timeout_s, proxy
            )
        except _BROKEN as error:
            raise _failure(error, url, timeout_s) from error

        async def flowing() -> AsyncIterator[bytes]:
            try:
                async for piece in pieces:
                    yield piece
            except _BROKEN as error:
                raise _failure(error, url, timeout_s) from error
            finally:
                await pieces.aclose()  # type: ignore[attr-defined]

        return HttpResponse(status, found, b"", _cookies(found)), flowing()

    async def close(self) -> None:
        """See `Transport.close`."""
        self._pool.close()
        await self._general_client.close()
        self._lag.stop()


def endpoint_transport(environ: Mapping[str, str], lag: LoopLag | None = None) -> HttpTransport:
    """For engines and hosted APIs: behind the proxies that the environment names, with tighter limits."""
    return HttpTransport(ENDPOINT_LIMITS, Proxies.of(environ), lag)


def _cookies(headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> tuple[str, ...]:
    return tuple(headers.getall("Set-Cookie", ()))


def _failure(error: Exception, url: str, timeout_s: float) -> Failure:
    """One of `_BROKEN` as our failure."""
    if isinstance(error, ConnectFailed):
        code = CONNECT_TIMED_OUT if error.timed_out else ""
        return Failure(FailureKind.UNREACHABLE, f"no connection to {url}: {error}", code=code)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return Failure(FailureKind.UNREACHABLE, f"no connection to {url}: its proxy answered {error.status}")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        reason = error.os_error.strerror if isinstance(error, aiohttp.ClientConnectorError) else ""
        through = "its proxy: " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
        return Failure(FailureKind.UNREACHABLE, f"no connection to {url}: {through}{reason or error}")
    if isinstance(error, TimeoutError):
        return Failure(FailureKind.TIMEOUT, f"{url} gave no answer within {timeout_s:g} s")
    if isinstance(error, InvalidHeader):
        return Failure(FailureKind.BAD_REQUEST, f"a request to {url} cannot be sent: {error}")
    if isinstance(error, aiohttp.InvalidURL):
        return Failure(FailureKind.UPSTREAM_REFUSED, f"{url!r} is no valid address")
    if isinstance(error, ValueError):  # yarl says what is wrong with an address, Proxies what is with a proxy
        return Failure(FailureKind.UPSTREAM_REFUSED, f"{url!r} is no valid address: {error}")
    return Failure(FailureKind.CONNECTION_LOST, f"the connection to {url} broke ({type(error).__name__}: {error})")


class LocalTransport:
    """Reaches apps of this process by their base URL without a socket; everything else goes to `beyond`."""

    def __init__(self, beyond: Transport, lag: LoopLag | None = None) -> None:
        self._apps: dict[str, ASGIApp] = {}
        self._beyond = beyond
        self._lag = lag or LoopLag()

    def mount(self, base_url: str, app: ASGIApp) -> None:
        """From now on requests below `base_url` go straight into `app`."""
        self._apps[base_url] = app

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        """See `Transport.send`."""
        slash = url.find("/", 8)
        app = self._apps.get(url[:slash])
        if app is None:
            return await self._beyond.send(method, url, body, headers, timeout_s)
        try:
            async with self._lag.timeout(timeout_s):
                return await _call(app, method, url[slash:], body, headers)
        except Failure:
            raise
        except TimeoutError as error:
            raise Failure(FailureKind.TIMEOUT, f"{url} gave no answer within {timeout_s:g} s") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise Failure(FailureKind.CONNECTION_LOST, f"the connection to {url} broke ({reason})") from error

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        """See `Transport.stream`. An app of this process answers in one piece."""
        if url[: url.find("/", 8)] not in self._apps:
            return await self._beyond.stream(method, url, body, headers, timeout_s)
        answer = await self.send(method, url, body, headers, timeout_s)

        async def pieces() -> AsyncIterator[bytes]:
            yield answer.body

        return HttpResponse(answer.status, answer.headers, b"", answer.cookies), pieces()

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._beyond.close()
        self._lag.stop()


async def _call(app: ASGIApp, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
    """One ASGI exchange. The app runs in the caller's task, so cancelling the caller cancels the work."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0
    answer_headers: dict[str, str] = {}
    cookies: list[str] = []
    chunks: list[bytes] = []
    whole = False

    async def receive() -> Message:
        if pending:
            return pending.pop()
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never  # no disconnect comes: the caller cancels instead

    async def send(message: Message) -> None:
        nonlocal status, whole
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message["headers"]:
                answer_headers[name.decode("latin-1")] = value.decode("latin-1")
                if name == b"set-cookie":
                    cookies.append(value.decode("latin-1"))
        else:
            chunks.append(message.get("body", b""))
            whole = not message.get("more_body")

    path, _, query = path.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    if not whole:
        raise Failure(FailureKind.CONNECTION_LOST, f"the app gave no whole answer to {method} {path}")
    return HttpResponse(status, answer_headers, b"".join(chunks), tuple(cookies))
