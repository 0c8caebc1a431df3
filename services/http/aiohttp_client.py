"""GeneralClient: aiohttp, for what plain connections do not carry: TLS, proxies, streams, any method."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from rollyard.services.http.content_encoding import InvalidResponse, decoders
from rollyard.services.http.dialer import ConnectFailed
from rollyard.services.http.limits import Limits
from rollyard.services.http.loop_lag import LagAwareTimeout, LoopLag
from rollyard.services.http.response_reader import ReceivedResponse

LINE_BYTES = 16 * 1024
"""Of one header line."""
FRESH_TRIES = 8


class GeneralClient:
    """One tuned session, made on first use inside the running loop."""

    def __init__(self, keepalive_s: float, connect_timeout_s: float, limits: Limits, lag: LoopLag) -> None:
        self._keepalive_s = keepalive_s
        self._connect_timeout_s = connect_timeout_s
        self._limits = limits
        self._lag = lag
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: URL, body: bytes, headers: Mapping[str, str], timeout_s: float, proxy: URL | None
    ) -> ReceivedResponse:
        """A whole answer. Raises aiohttp.ClientError, TimeoutError, OSError, ValueError."""
        async with self._lag.timeout(timeout_s), self._request(method, url, body, headers, proxy) as response:
            pieces = [piece async for piece in self._bounded(response)]
            return ReceivedResponse(response.status, response.headers.copy(), b"".join(pieces))

    async def stream(
        self, method: str, url: URL, body: bytes, headers: Mapping[str, str], timeout_s: float, proxy: URL | None
    ) -> tuple[int, CIMultiDictProxy[str], AsyncIterator[bytes]]:
        """An answer's status and headers, and its body piece by piece; closing the pieces hangs up."""
        deadline: LagAwareTimeout = self._lag.timeout(timeout_s)
        async with deadline:
            response = await self._request(method, url, body, headers, proxy)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                waiting = self._bounded(response)
                while True:
                    async with self._lag.timeout(deadline.left_s):
                        piece = await anext(waiting, None)
                    if piece is None:
                        return
                    yield piece
            finally:
                response.close()

        return response.status, response.headers, pieces()

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _request(self, method: str, url: URL, body: bytes, headers: Mapping[str, str], proxy: URL | None) -> Any:
        return self._opened().request(method, url, data=body, headers=headers, proxy=proxy, allow_redirects=False)

    async def _bounded(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The decoded body. Raises InvalidResponse."""
        try:
            self._check(response)
            chain = decoders(response.headers.getall("Content-Encoding", ()), self._limits.body_bytes)
            events = response.status == 200 and response.content_type == "text/event-stream" and not chain
            size, limit = 0, self._limits.stream_bytes if events else self._limits.body_bytes
            if (response.content_length or 0) > limit:
                raise _too_large(limit)
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                for decoder in chain:
                    piece = decoder.feed(piece)
                if piece:
                    yield piece
            for decoder in chain if size else ():
                decoder.finish()
        except BaseException:
            response.close()
            raise

    def _check(self, response: aiohttp.ClientResponse) -> None:
        """What aiohttp takes and plain connections do not."""
        head_bytes = sum(len(name) + len(value) + 4 for name, value in response.raw_headers)
        if head_bytes > self._limits.head_bytes:
            raise InvalidResponse(f"its headers are larger than {self._limits.head_bytes} bytes")
        if response.headers.get("Transfer-Encoding", "chunked").lower() != "chunked":
            raise InvalidResponse(
                f"its transfer encoding is {response.headers['Transfer-Encoding']}; only chunked is known"
            )
        if response.status == 101:
            raise InvalidResponse("the peer switched to another protocol")

    def _opened(self) -> aiohttp.ClientSession:
        """No cap on connections (admission is the collector's), no cookies, no decoding asked for."""
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
                auto_decompress=False,  # decoding.py knows when a body breaks off
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
                max_line_size=LINE_BYTES,
                max_field_size=LINE_BYTES,
                max_headers=self._limits.headers,
            )
        return self._session


class _Connector(aiohttp.TCPConnector):
    """Connections within a lived time; none that has spoken without being asked."""

    def __init__(self, timeout_s: float, lag: LoopLag, **options: Any) -> None:
        super().__init__(**options)
        self._timeout_s = timeout_s
        self._lag = lag

    async def connect(self, *arguments: Any, **named: Any) -> Any:
        """A kept connection or a new one. Raises ConnectFailed when there is none in time."""
        try:
            async with self._lag.timeout(self._timeout_s):
                for _ in range(FRESH_TRIES):
                    connection = await super().connect(*arguments, **named)
                    if not _has_spoken(connection.protocol):
                        return connection
                    connection.close()
        except TimeoutError:
            raise ConnectFailed(f"no connection within {self._timeout_s:g} s", timed_out=True) from None
        raise InvalidResponse("the peer speaks before it is asked")


def _has_spoken(protocol: Any) -> bool:
    """True when bytes of no request are there: what aiohttp has read of them, or the socket still holds."""
    if protocol is None or protocol.should_close:
        return True
    transport = protocol.transport
    if transport is None or transport.get_extra_info("ssl_object") is not None:
        return transport is None  # TLS speaks for itself between two requests: session tickets
    with contextlib.suppress(OSError, ValueError):
        readable = select.poll()
        readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(readable.poll(0))
    return True


def _too_large(limit: int) -> InvalidResponse:
    return InvalidResponse(f"its body is larger than {limit} bytes")
