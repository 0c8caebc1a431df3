"""Checks a request's Host header against the known host names, which prevents DNS rebinding by web pages."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rollyard.records.errors import OperatorError

_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,254}))(?::(?P<port>[0-9]{0,5}))?"
)
_CACHE_SIZE = 64
"""Maximum number of accepted Host headers to cache."""


@dataclass(frozen=True, slots=True)
class Authority:
    """Host and port of a URL."""

    host: str
    """A lower-case host name without a trailing dot, or an IP address in its shortest form.

    IPv4-mapped IPv6 addresses are stored as IPv4 addresses.
    """
    port: int | None


def parse_authority(text: str) -> Authority | None:
    """Parse `host`, `host:port`, `[::1]` or `[::1]:port`. Return None for anything else, such as `user@host`."""
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    if found["v6"]:
        address = _address(found["v6"])
        return Authority(address, port) if address else None
    name = found["name"].lower()
    name = name[:-1] if name.endswith(".") else name
    if not name or name.startswith(".") or ".." in name or name.endswith("."):
        return None
    return Authority(_address(name) or name, port)


def is_loopback(host: str) -> bool:
    """True if only processes on this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class KnownHosts:
    """Accepts `localhost`, loopback addresses and the given names."""

    def __init__(self, names: Iterable[str], *, any_address: bool = False) -> None:
        """`any_address`: also accept every IP address, because web pages cannot rebind those.

        Raises OperatorError if a name is not a valid host name.
        """
        self._names = {_parse_name(name) for name in names}
        self._any_address = any_address
        self._accepted: set[bytes] = set()

    def knows(self, host: bytes) -> bool:
        """True if a request with this Host header is allowed."""
        if host in self._accepted:
            return True
        authority = parse_authority(host.decode("latin-1"))
        if authority is None or not self._is_known(authority.host):
            return False
        if len(self._accepted) < _CACHE_SIZE:
            self._accepted.add(host)
        return True

    def _is_known(self, host: str) -> bool:
        return host in self._names or is_loopback(host) or (self._any_address and bool(_address(host)))


def _address(text: str) -> str:
    """Return the IP address in its shortest form, or an empty string if `text` is not an IP address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def _parse_name(name: str) -> str:
    authority = parse_authority(f"[{name}]" if name.count(":") > 1 and "[" not in name else name)
    if authority is None:
        raise OperatorError(f"{name!r} is not a host name; expected a name or an address, such as rollouts.example.org")
    return authority.host
