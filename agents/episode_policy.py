"""The policy of a single episode: `policy_base_url`, `policy_api_key` and `policy_model_name` in the body of `/run` or
`/v1/responses`, and the list of URLs that an agent allows for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import json_kind
from rollyard.records.types import Json
from rollyard.services.responses.policy_endpoint import PolicyEndpoint

BASE_URL, API_KEY, MODEL_NAME = "policy_base_url", "policy_api_key", "policy_model_name"
_FIELDS = (BASE_URL, API_KEY, MODEL_NAME)


@dataclass(frozen=True, slots=True)
class EpisodePolicy:
    endpoint: PolicyEndpoint
    recorded: Json


class PolicyOverrides:
    def __init__(self, allowlist: list[str], *, has_token: bool) -> None:
        self._allowed = [AllowedUrl.parse(entry) for entry in allowlist]
        self._has_token = has_token

    def read(self, row: Json) -> tuple[Json, EpisodePolicy | None]:
        """Return the row without the policy fields, and the episode's policy; None if it uses the agent's.

        Raises Failure: bad_request if a field is invalid, forbidden if the endpoint is not allowed.
        """
        if not any(name in row for name in _FIELDS):
            return row, None
        rest = {key: value for key, value in row.items() if key not in _FIELDS}
        given = {name: row[name] for name in _FIELDS if row.get(name) is not None}
        if not given:
            return rest, None
        if BASE_URL not in given:
            raise Failure(FailureKind.BAD_REQUEST, f"{' and '.join(given)} given without {BASE_URL}; expected a URL")
        urls = _urls(given[BASE_URL])
        if not isinstance(model := given.get(MODEL_NAME, ""), str):
            raise Failure(FailureKind.BAD_REQUEST, f"{MODEL_NAME} is {json_kind(model)}; expected text")
        endpoint = PolicyEndpoint(base_urls=urls, api_key=_key(given.get(API_KEY, "")), model=model)
        self._check(urls)
        return rest, EpisodePolicy(endpoint, {name: given[name] for name in given if name != API_KEY})

    def _check(self, urls: tuple[str, ...]) -> None:
        if not self._allowed:
            detail = f"this agent accepts no {BASE_URL}; list the allowed URLs in its setting policy_base_url_allowlist"
            raise Failure(FailureKind.FORBIDDEN, detail)
        if not self._has_token:
            detail = f"{BASE_URL} requires a run token: start the run with --token ... or ROLLYARD_TOKEN"
            raise Failure(FailureKind.FORBIDDEN, detail)
        for url in urls:
            try:
                parsed = parsed_url(url)
            except ValueError as error:
                raise Failure(FailureKind.BAD_REQUEST, f"{BASE_URL} is not usable: {error}") from error
            if not any(entry.allows(parsed) for entry in self._allowed):
                detail = (
                    f"{BASE_URL} {parsed.scheme}://{parsed.host}:{parsed.port} is not in this agent's setting "
                    "policy_base_url_allowlist"
                )
                raise Failure(FailureKind.FORBIDDEN, detail)


def _urls(value: Any) -> tuple[str, ...]:
    urls = [value] if isinstance(value, str) else value
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) and url for url in urls):
        found = f"{json_kind(value)}" if not isinstance(value, list | str) else "an empty value or one that is not text"
        raise Failure(FailureKind.BAD_REQUEST, f"{BASE_URL} is {found}; expected a URL or a list of URLs")
    return tuple(url.rstrip("/") for url in urls)


def _key(value: Any) -> str:
    """Return the key without surrounding white space. The error does not contain the value."""
    if not isinstance(value, str) or not value.strip().isascii() or not value.strip().isprintable():
        raise Failure(FailureKind.BAD_REQUEST, f"{API_KEY} is not text that can be sent in an HTTP header")
    return value.strip()


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
