"""Transport: sends requests to a server, over the network or directly to an app in this process.

It distinguishes failures to connect from later failures. A caller may retry the former but not the latter, because the
server may already have processed the request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from yarl import URL

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.channel import Channels
from rollyard.services.http.connection_pool import (
    ENDPOINT_LIMITS,
    RUN_LIMITS,
    ConnectFailed,
    ConnectionPool,
    Dialer,
    HttpLimits,
    RequestTarget,
    ResponseBody,
    target_of,
)
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import ASGIApp, HttpResponse, InvalidHeader, Message, Scope, SentHeaders
from rollyard.services.http.tls import UNTRUSTED, Trust


@dataclass(frozen=True)
class Proxies:
    """Proxies by URL scheme, and the hosts to connect to directly. Loopback addresses never use a proxy."""

    by_scheme: Mapping[str, str]
    direct: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Proxies:
        """Read the environment variables; lower-case names take precedence."""

        def read(name: str) -> str:
            return (environ.get(name) or environ.get(name.upper()) or "").strip()

        found = {scheme: read(f"{scheme}_proxy") or read("all_proxy") for scheme in ("http", "https")}
        by_scheme = {scheme: text if "://" in text else f"http://{text}" for scheme, text in found.items() if text}
        return cls(by_scheme, tuple(read("no_proxy").lower().replace(",", " ").split()))

    def of_address(self, url: URL) -> URL | None:
        """Return the proxy for `url`, or None for a direct connection. Raises ValueError if its URL is invalid."""
        configured = self.by_scheme.get(url.scheme)
        host = (url.raw_host or "").lower().rstrip(".")
        if not configured or _is_loopback(host) or any(_matches(entry, host, url.port) for entry in self.direct):
            return None
        proxy = URL(configured)
        if proxy.scheme not in ("http", "https") or not proxy.raw_host:
            shown = f"{proxy.scheme}://..." if proxy.scheme else configured
            raise ValueError(f"the proxy for {url.scheme} URLs is {shown}; expected http://host:port")
        return proxy


NO_PROXIES = Proxies({})


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _matches(entry: str, host: str, port: int | None) -> bool:
    """Match an entry of NO_PROXY: `*`, a domain with its subdomains, an address or a network, each with any port."""
    if entry == "*":
        return True
    name, colon, port_text = entry.rpartition(":")
    if colon and port_text.isdigit() and (":" not in name or name.endswith("]")):
        if int(port_text) != port:
            return False
        entry = name
    entry = entry.strip("[]").rstrip(".")
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    entry = entry.removeprefix("*").lstrip(".")
    return bool(entry) and (host == entry or host.endswith("." + entry))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


if TYPE_CHECKING:
    from rollyard.services.http.aiohttp_client import AiohttpClient

LocalAnswer = Callable[[str, bytes, Mapping[str, str]], Awaitable[HttpResponse | None]]
"""Answers a POST from its path, body and headers; None if the app does not serve the path in this way."""

RUN_HEADER = "x-rollyard-run"
CONNECT_TIMEOUT_S = 5.0
"""A peer on this host or in the cluster that has not accepted a connection by then is down or overloaded."""
CONNECT_TIMED_OUT = "connect_timeout"
"""Code of a connection attempt that timed out: the peer may be busy, as a host without it would have refused."""
KEEPALIVE_S = 15.0
"""How long to keep idle connections: well below the servers' 75 s, so that none is reused just as it is closed."""
OTHER_KEEPALIVE_S = 4.0
"""The same for servers of other frameworks: uvicorn closes an idle connection after 5 s unless told otherwise."""
_POOLED_METHODS = ("GET", "POST")
"""Requests with these methods use the connection pool unless they need a proxy. All others use aiohttp."""
_REQUEST_ERRORS = (TimeoutError, ValueError, OSError)
"""Exceptions raised, besides aiohttp's own, when no complete response was received."""


class Transport(Protocol):
    """Sends requests and returns their responses. Raises `Failure` if there is no response."""

    def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, channel: bool = False
    ) -> Awaitable[HttpResponse]:
        """Return the response, whatever its status. Raises Failure, such as unreachable, connection_lost or timeout.

        `channel`: whether the server accepts channels, one of which may then carry the request.
        """
        ...

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        """Return the response without its body, and an iterator over the body. `timeout_s` covers the entire stream."""
        ...

    async def close(self) -> None: ...


@lru_cache(maxsize=4096)
def _parse_url(url: str) -> URL:
    return URL(url)


class HttpTransport:
    """Sends requests over pooled connections where possible, and otherwise with aiohttp."""

    def __init__(
        self,
        limits: HttpLimits = RUN_LIMITS,
        proxies: Proxies = NO_PROXIES,
        lag: LoopLag | None = None,
        ca_files: Iterable[str] = (),
    ) -> None:
        """`ca_files`: files of authorities whose certificates are accepted in addition to the system's."""
        self._lag = lag or LoopLag()
        self._proxies = proxies
        self.trust = Trust(ca_files)
        dialer = Dialer(CONNECT_TIMEOUT_S, self._lag, self.trust)
        self._pool = ConnectionPool(KEEPALIVE_S, OTHER_KEEPALIVE_S, dialer, limits, self._lag)
        self._channels = Channels(dialer, limits, self._lag, (RUN_HEADER, "authorization"))
        self._limits = limits
        self._aiohttp_client: AiohttpClient | None = None
        self._numbers = itertools.count(1)

    async def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, channel: bool = False
    ) -> HttpResponse:
        try:
            proxy = self._proxies.of_address(_parse_url(url)) if self._proxies.by_scheme else None
            if proxy is None and method in _POOLED_METHODS and (target := target_of(url)) is not None:
                if channel and method == "POST":
                    return await self._send_in_run(target, body, headers, timeout_s)
                return await self._pool.send(method, target, body, headers, timeout_s, self._echo(headers))
            self._lag.start()
            return await self._aiohttp().send(method, _parse_url(url), body, headers, timeout_s, proxy)
        except Exception as error:
            self._explain(error, url, timeout_s)
            raise

    async def _send_in_run(
        self, target: RequestTarget, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpResponse:
        """Send a POST to a server that accepts channels, through one if the request is short."""
        sent = headers if isinstance(headers, SentHeaders) else SentHeaders(headers)
        channel, timeout_s = await self._channels.get(target, sent, body, timeout_s)
        found = None if channel is None else await channel.send(target.request_target, sent, body, timeout_s)
        if found is not None:
            return found
        return await self._pool.send("POST", target, body, sent, timeout_s, self._echo(sent))

    def _echo(self, headers: Mapping[str, str]) -> tuple[str, str] | None:
        """Return what responses of the run's servers carry: the run's header, and the id of the request."""
        return (f"{next(self._numbers):x}", RUN_HEADER) if RUN_HEADER in headers else None

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        self._lag.start()
        try:
            proxy = self._proxies.of_address(_parse_url(url))
            status, response_headers, received = await self._aiohttp().stream(
                method, _parse_url(url), body, headers, timeout_s, proxy
            )
        except Exception as error:
            self._explain(error, url, timeout_s)
            raise

        async def chunks() -> AsyncGenerator[bytes]:
            try:
                async for chunk in received:
                    yield chunk
            except Exception as error:
                self._explain(error, url, timeout_s)
                raise
            finally:
                await received.aclose()

        head = HttpResponse.of(status, response_headers, b"")
        return head, ResponseBody(chunks(), received.close)

    async def close(self) -> None:
        self._channels.close()
        self._pool.close()
        if self._aiohttp_client is not None:
            await self._aiohttp_client.close()
        self._lag.stop()

    def _aiohttp(self) -> AiohttpClient:
        """Return the client. Importing aiohttp takes a tenth of the start of a command, and most never need it."""
        if self._aiohttp_client is None:
            from rollyard.services.http.aiohttp_client import AiohttpClient

            self._aiohttp_client = AiohttpClient(
                OTHER_KEEPALIVE_S, CONNECT_TIMEOUT_S, self._limits, self._lag, self.trust
            )
        return self._aiohttp_client

    def _explain(self, error: Exception, url: str, timeout_s: float) -> None:
        """Raise the Failure that a request's error means; return for an error in our own code.

        No frame has a name for the Failure: its traceback would hold the frame, and only a garbage collection free it.
        """
        if self._aiohttp_client is not None and self._aiohttp_client.is_error(error):
            raise self._aiohttp_client.failure(error, url, timeout_s) from error
        if isinstance(error, _REQUEST_ERRORS):
            raise _to_failure(error, url, timeout_s) from error


def endpoint_transport(
    environ: Mapping[str, str], lag: LoopLag | None = None, ca_files: Iterable[str] = ()
) -> HttpTransport:
    """Create a transport for engines and hosted APIs, with proxies from environment variables and tighter limits."""
    return HttpTransport(ENDPOINT_LIMITS, Proxies.of(environ), lag, ca_files)


def _to_failure(error: Exception, url: str, timeout_s: float) -> Failure:
    if isinstance(error, ConnectFailed):
        code = CONNECT_TIMED_OUT if error.timed_out else UNTRUSTED if error.untrusted else ""
        return Failure(FailureKind.UNREACHABLE, f"no connection to {url}: {error}", code=code)
    if isinstance(error, TimeoutError):
        return Failure(FailureKind.TIMEOUT, f"{url} did not respond within {timeout_s:g} s")
    if isinstance(error, InvalidHeader):
        return Failure(FailureKind.BAD_REQUEST, f"a request to {url} cannot be sent: {error}")
    if isinstance(error, ValueError):  # from yarl for an invalid URL, or from Proxies for an invalid proxy
        return Failure(FailureKind.UPSTREAM_REFUSED, f"{url!r} is not a valid URL: {error}")
    return Failure(FailureKind.CONNECTION_LOST, f"the connection to {url} broke ({type(error).__name__}: {error})")


class LocalTransport:
    """Calls apps in this process by base URL, without a socket. Passes all other requests to `remote`."""

    def __init__(self, remote: Transport, lag: LoopLag | None = None) -> None:
        self._apps: dict[str, tuple[ASGIApp, LocalAnswer | None]] = {}
        self._remote = remote
        self._lag = lag or LoopLag()

    def mount(self, base_url: str, app: ASGIApp, answer: LocalAnswer | None = None) -> None:
        """`answer`: a shorter way to the POST routes of `app`."""
        self._apps[base_url] = app, answer

    def send(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, channel: bool = False
    ) -> Awaitable[HttpResponse]:
        slash = url.find("/", 8)
        mounted = self._apps.get(url[:slash])
        if mounted is None:
            return self._remote.send(method, url, body, headers, timeout_s, channel)
        return self._send_here(*mounted, method, url, url[slash:], body, headers, timeout_s)

    async def _send_here(
        self,
        app: ASGIApp,
        answer: LocalAnswer | None,
        method: str,
        url: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> HttpResponse:
        try:
            with self._lag.timeout(timeout_s):
                if answer is not None and method == "POST":
                    response = await answer(path, body, headers)
                    if response is not None:
                        return response
                return await _call(app, method, path, body, headers)
        except Failure:
            raise
        except TimeoutError as error:
            raise Failure(FailureKind.TIMEOUT, f"{url} did not respond within {timeout_s:g} s") from error
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise Failure(FailureKind.CONNECTION_LOST, f"the connection to {url} broke ({reason})") from error

    async def stream(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> tuple[HttpResponse, AsyncIterator[bytes]]:
        """Like `Transport.stream`, but an app in this process returns its body in one piece."""
        if url[: url.find("/", 8)] not in self._apps:
            return await self._remote.stream(method, url, body, headers, timeout_s)
        response = await self.send(method, url, body, headers, timeout_s)

        async def chunks() -> AsyncIterator[bytes]:
            yield response.body

        return HttpResponse(response.status, response.headers, b"", response.cookies), chunks()

    async def close(self) -> None:
        await self._remote.close()
        self._lag.stop()


async def _call(app: ASGIApp, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HttpResponse:
    """Run one ASGI exchange. The app runs in the caller's task, so cancelling the caller cancels the app."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    status = 0
    response_headers: dict[str, str] = {}
    cookies: list[str] = []
    chunks: list[bytes] = []
    complete = False

    async def receive() -> Message:
        if pending:
            return pending.pop()
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never  # there is no disconnect message: the caller cancels instead

    async def send(message: Message) -> None:
        nonlocal status, complete
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message["headers"]:
                response_headers[name.decode("latin-1")] = value.decode("latin-1")
                if name == b"set-cookie":
                    cookies.append(value.decode("latin-1"))
        else:
            chunks.append(message.get("body", b""))
            complete = not message.get("more_body")

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
    if not complete:
        raise Failure(FailureKind.CONNECTION_LOST, f"the app did not send a complete response to {method} {path}")
    return HttpResponse(status, response_headers, b"".join(chunks), tuple(cookies))
