"""The allow-list of URLs to which an agent's episodes may send their model calls."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True, slots=True)
class AllowedUrl:
    """One entry of the list: a URL prefix (`http://trainer:30000/sessions`), a host, or `host:port`.

    A host may begin with `*.`, which stands for every host below that domain.
    """

    host: str
    scheme: str = ""
    """Empty for http and https."""
    port: int | None = None
    """None for every port."""
    path: tuple[str, ...] = ()
    """The first segments of an allowed path."""

    @classmethod
    def parse(cls, entry: str) -> AllowedUrl:
        """Raises ValueError if the entry is neither a URL nor a host."""
        given = entry.strip()
        if "://" in given:
            url = parsed_url(given)
            return cls(url.host, url.scheme, url.port, url.path)
        parsed = urlsplit(f"//{given}")
        if not parsed.hostname or parsed.path or parsed.query or parsed.fragment or "@" in given:
            raise ValueError(f"found {entry!r}; expected a URL prefix, a host, or host:port")
        return cls(_host(parsed.hostname), port=parsed.port)

    def allows(self, url: ParsedUrl) -> bool:
        if self.scheme and url.scheme != self.scheme:
            return False
        if self.port is not None and url.port != self.port:
            return False
        if self.host.startswith("*."):
            return url.host.endswith(self.host[1:]) and not self.path
        return url.host == self.host and url.path[: len(self.path)] == self.path


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """The parts of a URL that decide whether it is allowed."""

    scheme: str
    host: str
    port: int
    path: tuple[str, ...]


def parsed_url(url: str) -> ParsedUrl:
    """Parse the base URL of an API.

    Raises ValueError if it is invalid, or if two parsers might read it differently: the check must see the host and
    path that the request goes to.
    """
    if not url.isascii() or not url.isprintable() or any(char in url for char in " \\"):
        raise ValueError("it contains characters that a URL must encode")
    parsed = urlsplit(url)
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise ValueError("expected a URL like http://127.0.0.1:8000/v1")
    if "@" in parsed.netloc:
        raise ValueError("put the credentials in policy_api_key, not in the URL")
    if parsed.query or parsed.fragment or url.endswith(("?", "#")):
        raise ValueError("expected a base URL without a query string and fragment")
    path = tuple(part for part in parsed.path.split("/") if part)
    if any(unquote(part) in (".", "..") or "/" in unquote(part) or "\\" in unquote(part) for part in path):
        raise ValueError("its path contains `.`, `..` or an encoded slash")
    if "//" in parsed.path:
        raise ValueError("its path contains an empty segment (//)")
    port = parsed.port  # raises ValueError for a port outside 0-65535
    if port == 0:
        raise ValueError("its port is 0")
    return ParsedUrl(parsed.scheme, _host(parsed.hostname), port or (443 if parsed.scheme == "https" else 80), path)


def _host(name: str) -> str:
    return name.lower().rstrip(".")
