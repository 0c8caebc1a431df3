"""Proxies: selects the proxy for a URL from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as curl does."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from yarl import URL


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
    """Return whether an entry of NO_PROXY matches the host and port.

    Entries are `*`, a domain (which includes its subdomains), an address, or a network (10.0.0.0/8), each with an
    optional port.
    """
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
