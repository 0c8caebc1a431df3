"""Access control for servers without a token: rejects unknown host names, web pages and other users of the host.

Requests from root and from the server's own user are allowed, including those that arrive through that user's reverse
proxy or SSH tunnel. Checking the Host header prevents DNS rebinding by web pages.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.records.audit import Origin
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.services.http.request import Scope

_OF_BROWSERS = frozenset({b"origin", b"sec-fetch-site"})
_JSON_LINES = (b"application/x-ndjson", b"application/jsonl", b"application/json-lines")
_DEFAULT_PORTS = {"http": 80, "https": 443}
Headers = dict[bytes, bytes]


class Access:
    def __init__(self, hosts: KnownHosts, *, command: str, other_users: bool = False, links: bool = False) -> None:
        """`command`: command whose options messages suggest; `links`: allow users to follow links from other sites."""
        self._hosts = hosts
        self._command = command
        self._other_users = other_users
        self._links = links
        self._uid = own_uid()

    def refusal(self, scope: Scope) -> Failure | None:
        """Return the reason for refusing the request. Those without a socket come from this process and are allowed."""
        # A peer that resets its connection immediately no longer has an address, but its request has arrived.
        if scope.get("client") is None and not peer_of(scope)[0]:
            return None
        headers: Headers = dict(scope["headers"])
        if len(headers) != len(scope["headers"]):
            headers = {}
            for name, value in scope["headers"]:
                # The combined value of a repeated header never matches an expected value.
                headers[name] = value if name not in headers else headers[name] + b", " + value
        if failure := self._foreign_user(scope) or self._unknown_host(headers):
            return failure
        # A request of a program, as almost all are.
        if headers.get(b"content-type") == b"application/json" and not _OF_BROWSERS & headers.keys():
            return None
        method = scope["method"]
        return self._foreign_page(method, headers) or _wrong_content_type(method, headers)

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


_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,254}))(?::(?P<port>[0-9]{0,5}))?"
)
_CACHE_SIZE = 64
"""Maximum number of accepted Host headers to cache."""


@dataclass(frozen=True, slots=True)
class Authority:
    host: str
    """A lower-case host name without a trailing dot, or the shortest form of an IP address (IPv4 if it is mapped)."""
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
        """`any_address`: also accept every IP address, which web pages cannot rebind. Raises OperatorError."""
        self._names = {_parse_name(name) for name in names}
        self._any_address = any_address
        self._accepted: set[bytes] = set()

    def knows(self, host: bytes) -> bool:
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


ESTABLISHED, FIN_WAIT1, FIN_WAIT2, LISTEN = 1, 4, 5, 10
"""TCP states as the kernel numbers them (include/net/tcp_states.h)."""
_OWNED = (ESTABLISHED, FIN_WAIT1, FIN_WAIT2)
"""States in which a process can still hold a connected socket: a client may have closed only its sending side."""
_MAPPED = bytes(10) + b"\xff\xff"
Address = tuple[str, int]
NOWHERE: Address = ("0.0.0.0", 0)
"""Placeholder for the remote address of a listening socket."""


@dataclass(frozen=True, slots=True)
class Socket:
    state: int
    uid: int
    """The owner's user id. Check `inode` first, because this is also 0 once no process holds the socket."""
    inode: int
    """0 if no process holds the socket."""


def owner(table: SocketTable, local: Address, remote: Address) -> int | None:
    """Return the user id of the process that holds the connected socket, or None if it cannot be determined."""
    found = table.find(local, remote)
    return found.uid if found is not None and found.state in _OWNED and found.inode else None


def listener_owner(table: SocketTable, address: Address) -> int | None:
    """Return the user id of the process that accepts connections to `address`, or None if it cannot be determined."""
    found = table.find(address, NOWHERE)
    return found.uid if found is not None and found.state == LISTEN and found.inode else None


def kernel_sockets() -> SocketTable:
    """Open netlink's socket table if the kernel supports it, otherwise the one in /proc."""
    try:
        table = SockDiag()
    except (OSError, AttributeError):  # refused, or not Linux
        return ProcNet()
    # A kernel without the tcp_diag module reports "not found" for every socket.
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 0))
            probe.listen(1)
        except OSError:
            return ProcNet()
        found = table.find(probe.getsockname(), NOWHERE)
    if found is not None and found.state == LISTEN:
        return table
    table.close()
    return ProcNet()


class SockDiag:
    _PROTOCOL = 4  # NETLINK_SOCK_DIAG
    _BY_FAMILY = 20  # SOCK_DIAG_BY_FAMILY
    _REQUEST = 1  # NLM_F_REQUEST
    _HEADER = struct.Struct("=IHHII")
    _QUERY = struct.Struct("=BBBxI")
    _ADDRESSES = struct.Struct("!HH16s16s")
    _NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # any interface, no cookie
    _RESPONSE = struct.Struct("=BB2x48sIIIII")

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, self._PROTOCOL)
        self._socket.setblocking(False)
        self._count = 0

    def close(self) -> None:
        self._socket.close()

    def find(self, local: Address, remote: Address) -> Socket | None:
        own, peer = _pack(local[0]), _pack(remote[0])
        if len(own) != len(peer):
            peer = bytes(len(own))
        family = socket.AF_INET if len(own) == 4 else socket.AF_INET6
        self._count = self._count % 0xFFFFFFFF + 1
        addresses = self._ADDRESSES.pack(local[1], remote[1], own.ljust(16, b"\0"), peer.ljust(16, b"\0"))
        body = self._QUERY.pack(family, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + addresses + self._NO_COOKIE
        head = self._HEADER.pack(self._HEADER.size + len(body), self._BY_FAMILY, self._REQUEST, self._count, 0)
        try:
            self._socket.send(head + body)
            while True:  # the kernel has responded by now; skip responses to earlier queries
                response = self._socket.recv(1024)
                _, kind, _, number, _ = self._HEADER.unpack_from(response)
                if number == self._count:
                    break
        except OSError:
            return None
        if kind != self._BY_FAMILY:  # NLMSG_ERROR: no such socket
            return None
        _, state, _, _, _, _, uid, inode = self._RESPONSE.unpack_from(response, self._HEADER.size)
        return Socket(state, uid, inode)


class ProcNet:
    def __init__(self, folder: Path = Path("/proc/net")) -> None:
        self._folder = folder

    def find(self, local: Address, remote: Address) -> Socket | None:
        own, peer = (_pack(local[0]), local[1]), (_pack(remote[0]), remote[1])
        listening: list[tuple[bool, Socket]] = []
        for local_end, remote_end, found in self._rows():
            if local_end[1] != own[1]:
                continue
            if local_end[0] == own[0] and remote_end == peer and found.state != LISTEN:
                return found
            if found.state == LISTEN and (local_end[0] == own[0] or not any(local_end[0])):
                listening.append((local_end[0] == own[0], found))
        return max(listening, key=lambda pair: pair[0])[1] if listening else None

    def listeners(self) -> Iterator[tuple[int, Socket]]:
        return ((local[1], found) for local, _, found in self._rows() if found.state == LISTEN)

    def close(self) -> None:
        pass

    def _rows(self) -> Iterator[tuple[tuple[bytes, int], tuple[bytes, int], Socket]]:
        for name in ("tcp", "tcp6"):
            try:
                lines = (self._folder / name).read_text().splitlines()[1:]
            except OSError:
                continue
            for line in lines:
                fields = line.split()
                yield _read(fields[1]), _read(fields[2]), Socket(int(fields[3], 16), int(fields[7]), int(fields[9]))


SocketTable = SockDiag | ProcNet


def _pack(host: str) -> bytes:
    """Return an IP address in network byte order, with IPv4-mapped IPv6 addresses converted to IPv4."""
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host)
    return _as_ipv4(socket.inet_pton(socket.AF_INET6, host.partition("%")[0]))


def _as_ipv4(packed: bytes) -> bytes:
    return packed[12:] if packed.startswith(_MAPPED) else packed


def _read(text: str) -> tuple[bytes, int]:
    """Parse an address such as `0100007F:2AF8`, whose 32-bit words are in the host's byte order."""
    words, _, port = text.partition(":")
    raw = bytes.fromhex(words)
    packed = b"".join(struct.pack("!I", struct.unpack_from("=I", raw, at)[0]) for at in range(0, len(raw), 4))
    return _as_ipv4(packed), int(port, 16)


PEER = "peer_uid"
"""Key in a request's `scope["state"]`. The value is the peer's user id, or None if it cannot be determined."""


class Peers:
    def __init__(self, table: SocketTable | None = None, *, unmapped: int | None = None) -> None:
        """`unmapped`: user id that represents all users without a mapping in this namespace (default: the kernel's)."""
        self._table = table
        self._unmapped = _unmapped() if unmapped is None else unmapped

    def open(self) -> None:
        """Open the socket table. Call this before the first connection."""
        self._table = self._table or kernel_sockets()

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def owner(self, transport: asyncio.BaseTransport) -> int | None:
        """Return the peer's user id, or None if it cannot be determined."""
        there, here = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if self._table is None or not isinstance(there, tuple) or not isinstance(here, tuple):
            return None
        uid = owner(self._table, there[:2], here[:2])
        return None if uid == self._unmapped else uid


def peer_of(scope: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Return whether the peer's user was looked up, and the peer's user id (None if it is unknown)."""
    state = scope.get("state") or {}
    return PEER in state, state.get(PEER)


def origin_of(scope: Mapping[str, Any], *, has_token: bool) -> Origin:
    """Return who sent a request that was let in. `has_token`: whether that took a token."""
    host, port = scope.get("client") or ("", 0)
    plane = "control" if has_token else ""
    return Origin(address=f"{host}:{port}" if host else "", uid=peer_of(scope)[1], plane=plane)


def _unmapped() -> int:
    """Return the user id that represents users without a mapping in this namespace, or -1 if all users are mapped."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return -1
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


def own_uid() -> int:
    return os.geteuid()
