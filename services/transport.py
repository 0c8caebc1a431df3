"""The seam: how bytes reach a server. Over the network, or straight into an app of this process.

Only set-up errors of a connection are told apart from later ones: the first may be tried again by anybody, the
second never, because the other side may have acted already.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import aiohttp
from yarl import URL

from services.errors import Failure, FailureKind
from services.wire import NoConnection, Wire, target_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECT_TIMEOUT_S = 5.0
"""A loopback or cluster peer that has not accepted by then is down."""

KEEPALIVE_S = 15.0
"""Well under the servers' own 75 s: a pooled connection is never one that the peer is just closing."""
_WIRED = ("GET", "POST")
"""Whole answers to these, from plain addresses, come over wire.py; the rest over aiohttp."""
_BROKEN = (aiohttp.ClientError, TimeoutError, ValueError, OSError)
"""What a request raises that got no whole answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: status, headers (case-insensitive by lower-case keys where we made them), body."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()
    """Every `Set-Cookie` value as it came."""


class Transport(Protocol):
    """Sends one request and returns its answer; raises `Failure` when there is none."""

    async def send(self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """The answer of any status. Raises Failure: unreachable, connection_lost, timeout."""
        ...

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[Answer, AsyncIterator[bytes]]:
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


@lru_cache(maxsize=256)
def _deadline(timeout_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)


class HttpTransport:
    """Plain connections, and one tuned aiohttp session for the rest, made on first use inside the running loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._wire = Wire(KEEPALIVE_S, CONNECT_TIMEOUT_S)

    def session(self) -> aiohttp.ClientSession:
        """The session: no cap on connections (admission is the collector's), no cookies, no proxies, no decoding."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=300, family=socket.AF_UNSPEC
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            )
        return self._session

    async def send(self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """See `Transport.send`."""
        try:
            if method in _WIRED and (target := target_of(url)) is not None:
                reply = await self._wire.send(method, target, body, headers, timeout_s)
                return Answer(reply.status, reply.headers, reply.body, tuple(reply.headers.getall("Set-Cookie", ())))
            async with self.session().request(
                method, _parsed(url), data=body, headers=headers, timeout=_deadline(timeout_s), allow_redirects=False
            ) as response:
                cookies = tuple(response.headers.getall("Set-Cookie", ()))
                return Answer(response.status, response.headers, await response.read(), cookies)
        except _BROKEN as error:
            raise _failure(error, url, timeout_s) from error

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[Answer, AsyncIterator[bytes]]:
        """See `Transport.stream`."""
        try:
            response = await self.session().request(
                method, _parsed(url), data=body, headers=headers, timeout=_deadline(timeout_s), allow_redirects=False
            )
        except _BROKEN as error:
            raise _failure(error, url, timeout_s) from error
        cookies = tuple(response.headers.getall("Set-Cookie", ()))

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in response.content.iter_any():
                    yield piece
            except _BROKEN as error:
                raise _failure(error, url, timeout_s) from error
            finally:
                response.close()

        return Answer(response.status, response.headers, b"", cookies), pieces()

    async def close(self) -> None:
        """See `Transport.close`."""
        self._wire.close()
        if self._session is not None:
            await self._session.close()
            self._session = None


def _failure(error: Exception, url: str, timeout_s: float) -> Failure:
    """One of `_BROKEN` as our failure."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | NoConnection):
        reason = error.os_error.strerror if isinstance(error, aiohttp.ClientConnectorError) else ""
        return Failure(FailureKind.UNREACHABLE, f"no connection to {url}: {reason or error}")
    if isinstance(error, TimeoutError):
        return Failure(FailureKind.TIMEOUT, f"{url} gave no answer within {timeout_s:g} s")
    if isinstance(error, ValueError):  # aiohttp's InvalidURL is one, yarl raises it bare
        return Failure(FailureKind.UPSTREAM_REFUSED, f"{url!r} is no valid address")
    return Failure(FailureKind.CONNECTION_LOST, f"the connection to {url} broke ({type(error).__name__}: {error})")


class LocalTransport:
    """Reaches apps of this process by their base URL without a socket; everything else goes to `beyond`."""

    def __init__(self, beyond: Transport) -> None:
        self._apps: dict[str, ASGIApp] = {}
        self._beyond = beyond

    def mount(self, base_url: str, app: ASGIApp) -> None:
        """From now on requests below `base_url` go straight into `app`."""
        self._apps[base_url] = app

    async def send(self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """See `Transport.send`."""
        slash = url.find("/", 8)
        app = self._apps.get(url[:slash])
        if app is None:
            return await self._beyond.send(method, url, body, headers, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
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
    ) -> tuple[Answer, AsyncIterator[bytes]]:
        """See `Transport.stream`. An app of this process answers in one piece."""
        if url[: url.find("/", 8)] not in self._apps:
            return await self._beyond.stream(method, url, body, headers, timeout_s)
        answer = await self.send(method, url, body, headers, timeout_s)

        async def pieces() -> AsyncIterator[bytes]:
            yield answer.body

        return Answer(answer.status, answer.headers, b"", answer.cookies), pieces()

    async def close(self) -> None:
        """See `Transport.close`."""
        await self._beyond.close()


async def _call(app: ASGIApp, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
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
    return Answer(status, answer_headers, b"".join(chunks), tuple(cookies))
