"""Checks requests to a server without a token.

Requests from web pages and from other users of the host are refused. Clients such as aiohttp, requests and the openai
package do not need any special headers.
"""

from __future__ import annotations

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.access.hosts import KnownHosts, parse_authority
from rollyard.services.http.access.peer_user import own_uid, peer_of
from rollyard.services.http.transport import Scope

_CHECKED_HEADERS = frozenset(
    {b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"content-type", b"content-length", b"transfer-encoding"}
)
_JSON_LINES = (b"application/x-ndjson", b"application/jsonl", b"application/json-lines")
_DEFAULT_PORTS = {"http": 80, "https": 443}
Headers = dict[bytes, bytes]


class Access:
    """Decides whether a request is allowed."""

    def __init__(
        self,
        hosts: KnownHosts,
        *,
        command: str,
        other_users: bool = False,
        links: bool = False,
        uid: int | None = None,
    ) -> None:
        """`command`: the command whose options are suggested in error messages; `other_users`: allow all users of the
        host; `links`: allow users to follow links from other sites; `uid`: this server's user id (default: the
        process's).
        """
        self._hosts = hosts
        self._command = command
        self._other_users = other_users
        self._links = links
        self._uid = own_uid() if uid is None else uid

    def refusal(self, scope: Scope) -> Failure | None:
        """Return the reason for refusing the request, or None if it is allowed.

        Requests without a socket come from this process and are always allowed.
        """
        # A peer that resets its connection immediately no longer has an address, but its request has arrived.
        if scope.get("client") is None and not peer_of(scope)[0]:
            return None
        headers: Headers = {}
        for name, value in scope["headers"]:
            if name in _CHECKED_HEADERS:
                # The combined value of a repeated header never matches an expected value.
                headers[name] = value if name not in headers else headers[name] + b", " + value
        return (
            self._foreign_user(scope)
            or self._unknown_host(headers)
            or self._foreign_page(scope["method"], headers)
            or _wrong_content_type(scope["method"], headers)
        )

    def _foreign_user(self, scope: Scope) -> Failure | None:
        looked_up, uid = peer_of(scope)
        if self._other_users or not looked_up or uid == self._uid or uid == 0:
            return None
        found = (
            "the user of this connection cannot be determined"
            if uid is None
            else f"this connection is from another user of this host (user id {uid}, this server's is {self._uid})"
        )
        remedy = f"to allow every user of this host, start it with {self._command} --allow-other-users"
        return _forbidden(f"{found}, and this server has no token: {remedy}, or with --token ...")

    def _unknown_host(self, headers: Headers) -> Failure | None:
        host = headers.get(b"host")
        if host is None:
            return _forbidden("the request has no Host header; expected the name or address of this server", 400)
        if self._hosts.knows(host):
            return None
        remedy = f"to allow another name, start it with {self._command} --allowed-hosts NAME"
        return _forbidden(
            f"{_excerpt(host)} is not a name of this server; expected 127.0.0.1 or localhost: {remedy}", 421
        )

    def _foreign_page(self, method: str, headers: Headers) -> Failure | None:
        origin = headers.get(b"origin")
        if origin is not None and not _same_origin(origin, headers[b"host"]):
            return _forbidden(f"a page of another origin ({_excerpt(origin)}) may not call this server")
        followed = self._links and method == "GET" and headers.get(b"sec-fetch-mode") == b"navigate"
        if b"cross-site" in headers.get(b"sec-fetch-site", b"").lower() and not followed:
            return _forbidden("a page of another site may not call this server (Sec-Fetch-Site: cross-site)")
        return None


def _wrong_content_type(method: str, headers: Headers) -> Failure | None:
    """Refuse content types that a web page can send without a CORS preflight (forms, text)."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return None
    if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
        return None
    given = headers.get(b"content-type")
    kind = b"" if given is None else given.partition(b";")[0].strip().lower()
    if kind == b"application/json" or kind in _JSON_LINES:
        return None
    if kind.startswith(b"application/") and kind.endswith(b"+json") and b"," not in kind:
        return None
    found = "the body has no content type" if given is None else f"the body's content type is {_excerpt(given)}"
    return _forbidden(f"{found}; expected application/json (with curl: -H 'content-type: application/json')", 415)


def _same_origin(origin: bytes, host: bytes) -> bool:
    """True if a page of `origin` was served under the name `host`."""
    scheme, separator, authority = origin.decode("latin-1").strip().lower().partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    page, server = parse_authority(authority), parse_authority(host.decode("latin-1"))
    if not separator or default is None or page is None or server is None:
        return False
    return (page.host, page.port or default) == (server.host, server.port or default)


def _forbidden(detail: str, status: int = 403) -> Failure:
    return Failure(FailureKind.FORBIDDEN, detail, status=status)


def _excerpt(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))
