"""Dialer: opens connections to a host and port. Tries the next address of a host name after 250 ms (Happy Eyeballs)."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import aiohappyeyeballs

from rollyard.services.http.loop_lag import LoopLag

NEXT_ADDRESS_S = 0.25
"""Delay before trying the next address of a host name, as recommended by RFC 8305."""
DNS_CACHE_S = 5.0
"""How long to cache a host name's addresses. Thousands of connections opened at once then share one lookup."""

P = TypeVar("P", bound=asyncio.BaseProtocol)
AddressInfos = list[tuple[Any, ...]]


class ConnectFailed(OSError):
    """Raised when the peer cannot be reached. Nothing was sent."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out
        """True if the peer did not respond. It may be running but too busy to accept connections."""

    def __str__(self) -> str:
        return str(self.args[0])


class Dialer:
    """Opens connections with a connect timeout of `timeout_s` seconds, which excludes event-loop lag."""

    def __init__(self, timeout_s: float, lag: LoopLag) -> None:
        self._timeout_s = timeout_s
        self._lag = lag
        self._names: dict[tuple[str, int], tuple[float, asyncio.Task[AddressInfos]]] = {}

    async def dial(self, host: str, port: int, make: Callable[[], P], timeout_s: float) -> P:
        """Open a connection within `timeout_s` or the dialer's own timeout, whichever is shorter.

        Raises ConnectFailed if that is not possible.
        """
        limit_s = min(self._timeout_s, timeout_s)
        try:
            async with self._lag.timeout(limit_s):
                return await self._connect(host.strip("[]"), port, make)
        except TimeoutError:
            raise ConnectFailed(f"timed out after {limit_s:g} s", timed_out=True) from None
        except (OSError, RuntimeError) as error:  # uvloop raises a bare RuntimeError for some refusals
            raise ConnectFailed(getattr(error, "strerror", None) or str(error)) from error

    async def _connect(self, host: str, port: int, make: Callable[[], P]) -> P:
        loop = asyncio.get_running_loop()
        if _is_address(host):
            return (await loop.create_connection(make, host, port))[1]
        infos: Any = await self._addresses(host, port)
        sock = await aiohappyeyeballs.start_connection(infos, happy_eyeballs_delay=NEXT_ADDRESS_S)
        try:
            return (await loop.create_connection(make, sock=sock))[1]
        except BaseException:
            sock.close()
            raise

    async def _addresses(self, host: str, port: int) -> AddressInfos:
        now = asyncio.get_running_loop().time()
        cached = self._names.get((host, port))
        if cached is None or cached[0] < now or (cached[1].done() and (cached[1].cancelled() or cached[1].exception())):
            cached = (now + DNS_CACHE_S, asyncio.create_task(_look_up(host, port)))
            self._names[host, port] = cached
        return await asyncio.shield(cached[1])


async def _look_up(host: str, port: int) -> AddressInfos:
    return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
