"""Looks up the user who owns a local TCP socket in the kernel's socket tables, by the socket's addresses.

`SockDiag` uses netlink (`man 7 sock_diag`) and takes about ten microseconds. If a container forbids netlink, `ProcNet`
reads /proc/net/tcp instead, which takes longer if many sockets are open. Both see only this network namespace.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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
    """A row of the kernel's socket table."""

    state: int
    uid: int
    """The owner's user id. Check `inode` first, because this is also 0 once no process holds the socket."""
    inode: int
    """0 if no process holds the socket."""


class SocketTable(Protocol):
    """The TCP sockets of this network namespace."""

    def find(self, local: Address, remote: Address) -> Socket | None:
        """Return the socket bound to `local` and connected to `remote`, or else the one listening on `local`."""
        ...

    def close(self) -> None:
        """Release the table's resources."""
        ...


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
    """Looks up sockets by their addresses through netlink."""

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
        """Close the netlink socket."""
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
    """Looks up sockets in /proc/net/tcp and /proc/net/tcp6."""

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
