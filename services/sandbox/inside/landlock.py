"""Landlock: restricts file access where namespaces are not available, such as in many containers."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from rollyard.services.sandbox.inside import libc

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 5: 16}
"""Landlock version -> number of file access rights that the kernel supports from that version on."""
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
RESTRICTS_TRUNCATE = 3
"""First Landlock version that can restrict truncating files."""
SCOPES_SIGNALS = 6
"""First Landlock version that can restrict signals."""
_MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
_CONNECT_TCP = 2


def version() -> int:
    """Return the kernel's Landlock version, or 0 if it does not support Landlock."""
    try:
        return libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def rules(readable: Iterable[str], writable: Iterable[str] = (), ports: Iterable[int] = ()) -> int:
    """Create a ruleset and return its file descriptor.

    It allows reading and executing only files under `readable`, writing only to /dev/null and under `writable`, and
    connecting by TCP only to `ports`. It forbids signals to processes outside the jail. Older versions enforce the
    parts that they support. Raises OSError if the kernel does not support Landlock.
    """
    abi_version = version()
    rights = (1 << max(count for since, count in _RIGHTS_BY_VERSION.items() if since <= max(abi_version, 1))) - 1
    network, scopes = (3 if abi_version >= 4 else 0), (3 if abi_version >= 6 else 0)
    attributes = struct.pack("=QQQ", rights, network, scopes)[: 8 if abi_version < 4 else 16 if abi_version < 6 else 24]
    ruleset = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    for path in readable:
        _allow(ruleset, path)
    for path in writable:
        _add_path(ruleset, path, rights & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE))
    for port in ports:
        rule = struct.pack("=QQ", _CONNECT_TCP, port)
        libc.syscall(_ADD, ctypes.c_int(ruleset), ctypes.c_int(2), rule, ctypes.c_uint32(0))
    return ruleset


def restrict(rules: int) -> None:
    """Restrict this process to `rules` irrevocably. Raises OSError on failure."""
    libc.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))


def _allow(rules: int, path: str) -> None:
    rights = _EXECUTE | _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)  # noqa: PTH112 (pathlib is not loaded)
    rights |= _WRITE_FILE if path == os.devnull else 0
    _add_path(rules, path, rights)


def _add_path(rules: int, path: str, rights: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, opened)
        libc.syscall(_ADD, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(opened)
