"""AiohttpClient: sends requests that the connection pool does not support: proxies, streams, other methods."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.connection_pool import (
    ConnectFailed,
    HttpLimits,
    InvalidResponse,
    ResponseBody,
    decoders,
)
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.tls import UNTRUSTED, Trust, connect_error

LINE_BYTES = 16 * 1024
"""Maximum length of a header line."""
CONNECT_ATTEMPTS = 8


class AiohttpClient:
    """Wraps one aiohttp session, which is created on first use because it needs a running event loop."""

    def __init__(
        self, keepalive_s: float, connect_timeout_s: float, limits: HttpLimits, lag: LoopLag, trust: Trust
    ) -> None:
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._limits = limits
        self._lag = lag
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: URL, body: bytes, headers: Mapping[str, str], timeout_s: float, proxy: URL | None
    ) -> HttpResponse:
        """Return the complete response. Raises aiohttp.ClientError, TimeoutError, OSError or ValueError."""
        with self._lag.timeout(timeout_s):
            async with self._request(method, url, body, headers, proxy) as response:
                chunks = [chunk async for chunk in self._bounded(response)]
                return HttpResponse.of(response.status, response.headers.copy(), b"".join(chunks))

    async def stream(
        self, method: str, url: URL, body: bytes, headers: Mapping[str, str], timeout_s: float, proxy: URL | None
    ) -> tuple[int, CIMultiDictProxy[str], ResponseBody]:
        with self._lag.timeout(timeout_s) as timeout:
            response = await self._request(method, url, body, headers, proxy)

        async def chunks() -> AsyncGenerator[bytes]:
            try:
                chunks = self._bounded(response)
                while True:
                    with self._lag.timeout(timeout.left_s):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        return
                    yield chunk
            finally:
                response.close()

        return response.status, response.headers, ResponseBody(chunks(), response.close)

    @staticmethod
    def is_error(error: Exception) -> bool:
        return isinstance(error, aiohttp.ClientError)

    @staticmethod
    def failure(error: Exception, url: str, timeout_s: float) -> Failure:
        """Return what an error of aiohttp means."""
        if isinstance(error, aiohttp.ClientHttpProxyError):
            detail = f"no connection to {url}: its proxy responded with status {error.status}"
            return Failure(FailureKind.UNREACHABLE, detail)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            os_error = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else None
            reason = connect_error(os_error) if isinstance(os_error, ssl.SSLError) else os_error and os_error.strerror
            through = "its proxy: " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
            code = UNTRUSTED if isinstance(os_error, ssl.SSLCertVerificationError) else ""
            return Failure(FailureKind.UNREACHABLE, f"no connection to {url}: {through}{reason or error}", code=code)
        if isinstance(error, TimeoutError):
            return Failure(FailureKind.TIMEOUT, f"{url} did not respond within {timeout_s:g} s")
        if isinstance(error, aiohttp.InvalidURL):
            return Failure(FailureKind.UPSTREAM_REFUSED, f"{url!r} is not a valid URL")
        return Failure(FailureKind.CONNECTION_LOST, f"the connection to {url} broke ({type(error).__name__}: {error})")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _request(self, method: str, url: URL, body: bytes, headers: Mapping[str, str], proxy: URL | None) -> Any:
        try:
            context = self._trust.context() if url.scheme == "https" else True
        except OSError as error:
            raise ConnectFailed(error.strerror or str(error)) from error
        return self._get_session().request(
            method, url, data=body, headers=headers, proxy=proxy, allow_redirects=False, ssl=context
        )

    async def _bounded(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """Iterate over the decoded body. Raises InvalidResponse if it is too large or cannot be decoded."""
        try:
            self._check_headers(response)
            chain = decoders(response.headers.getall("Content-Encoding", ()), self._limits.body_bytes)
            events = response.status == 200 and response.content_type == "text/event-stream" and not chain
            size, limit = 0, self._limits.stream_bytes if events else self._limits.body_bytes
            if (response.content_length or 0) > limit:
                raise _too_large(limit)
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                for decoder in chain:
                    chunk = decoder.feed(chunk)
                if chunk:
                    yield chunk
            for decoder in chain if size else ():
                decoder.finish()
        except BaseException:
            response.close()
            raise

    def _check_headers(self, response: aiohttp.ClientResponse) -> None:
        """Raise InvalidResponse for responses that aiohttp accepts but the connection pool rejects."""
        header_bytes = sum(len(name) + len(value) + 4 for name, value in response.raw_headers)
        if header_bytes > self._limits.header_bytes:
            raise InvalidResponse(f"the response headers are larger than {self._limits.header_bytes} bytes")
        if response.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
            raise InvalidResponse(
                f"the transfer encoding is {response.headers['Transfer-Encoding']}; only chunked is supported"
            )
        if response.status == 101:
            raise InvalidResponse("the peer switched to a different protocol")

    def _get_session(self) -> aiohttp.ClientSession:
        """Return the session. It limits no connections, because the collector does, and stores no cookies."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_Connector(
                    self._connect_timeout_s,
                    self._lag,
                    limit=0,
                    keepalive_timeout=self._keepalive_s,
                    ttl_dns_cache=300,
                    family=socket.AF_UNSPEC,
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # a Decoder detects truncated bodies
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
                max_line_size=LINE_BYTES,
                max_field_size=LINE_BYTES,
                max_headers=self._limits.headers,
            )
        return self._session


class _Connector(aiohttp.TCPConnector):
    """Enforces a connect timeout that excludes event-loop lag, and discards pooled connections with unexpected data."""

    def __init__(self, timeout_s: float, lag: LoopLag, **options: Any) -> None:
        super().__init__(**options)
        self._timeout_s = timeout_s
        self._lag = lag

    async def connect(self, *arguments: Any, **named: Any) -> Any:
        """Return a pooled or new connection. Raises ConnectFailed on timeout."""
        try:
            with self._lag.timeout(self._timeout_s):
                for _ in range(CONNECT_ATTEMPTS):
                    connection = await super().connect(*arguments, **named)
                    if not _has_unexpected_data(connection.protocol):
                        return connection
                    connection.close()
        except TimeoutError:
            raise ConnectFailed(f"timed out after {self._timeout_s:g} s", timed_out=True) from None
        raise InvalidResponse("the peer sent data before any request")


def _has_unexpected_data(protocol: Any) -> bool:
    """True if the peer sent bytes outside a response, whether aiohttp has read them or they are still in the socket."""
    if protocol is None or protocol.should_close:
        return True
    transport = protocol.transport
    if transport is None or transport.get_extra_info("ssl_object") is not None:
        return transport is None  # TLS sends data of its own between two requests, such as session tickets
    with contextlib.suppress(OSError, ValueError):
        readable = select.poll()
        readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(readable.poll(0))
    return True


def _too_large(limit: int) -> InvalidResponse:
    return InvalidResponse(f"the response body is larger than {limit} bytes")
