"""Dialer: a socket to a host and port. A name with several addresses is tried at the next one after 250 ms."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import aiohappyeyeballs

from rollyard.services.http.loop_lag import LoopLag

NEXT_ADDRESS_S = 0.25
"""RFC 8305's delay between two addresses of one name."""
REMEMBERED_S = 5.0
"""How long a name's addresses are used again: thousands of connections opened at once ask for them once."""

P = TypeVar("P", bound=asyncio.BaseProtocol)
AddressInfos = list[tuple[Any, ...]]


class ConnectFailed(OSError):
    """The peer could not be reached; nothing was sent."""

    def __init__(self, why: str, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.timed_out = timed_out
        """True where the peer was silent: it may be there and too busy to accept."""

    def __str__(self) -> str:
        return str(self.args[0])


class Dialer:
    """Opens connections; each is given `timeout_s` of lived time."""

    def __init__(self, timeout_s: float, lag: LoopLag) -> None:
        self._timeout_s = timeout_s
        self._lag = lag
        self._names: dict[tuple[str, int], tuple[float, asyncio.Task[AddressInfos]]] = {}

    async def dial(self, host: str, port: int, make: Callable[[], P], deadline_s: float) -> P:
        """A connection within `deadline_s`, or less. Raises ConnectFailed."""
        limit_s = min(self._timeout_s, deadline_s)
        try:
            async with self._lag.timeout(limit_s):
                return await self._connect(host.strip("[]"), port, make)
        except TimeoutError:
            raise ConnectFailed(f"no connection within {limit_s:g} s", timed_out=True) from None
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
        known = self._names.get((host, port))
        if known is None or known[0] < now or (known[1].done() and (known[1].cancelled() or known[1].exception())):
            known = (now + REMEMBERED_S, asyncio.create_task(_look_up(host, port)))
            self._names[host, port] = known
        return await asyncio.shield(known[1])


async def _look_up(host: str, port: int) -> AddressInfos:
    return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
