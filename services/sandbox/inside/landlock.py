"""Landlock: the view of the files where there are no namespaces, as in a container's default profile."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from rollyard.services.sandbox.inside import libc

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 5: 16}
"""From this version on the kernel knows so many rights on files."""
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
HOLDS_LENGTHS = 3
"""From this version on a file that may be read cannot be cut."""


def version() -> int:
    """The kernel's Landlock; 0 where there is none."""
    try:
        return libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def rules(readable: Iterable[str]) -> int:
    """A descriptor of these rules: files below `readable` may be read and run, no other opened; no TCP, no foreign
    signals. Nothing may be written but what the machine forgets at once (/dev/null).

    Raises OSError where the kernel has no Landlock. What is older than its newest parts is restricted as it can.
    """
    known = version()
    rights = (1 << max(count for since, count in _RIGHTS_BY_VERSION.items() if since <= max(known, 1))) - 1
    network, scopes = (3 if known >= 4 else 0), (3 if known >= 6 else 0)
    attributes = struct.pack("=QQQ", rights, network, scopes)[: 8 if known < 4 else 16 if known < 6 else 24]
    made = libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    for path in readable:
        _allow(made, path)
    return made


def restrict(rules: int) -> None:
    """Hold this process to `rules` for ever. Raises OSError."""
    libc.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))


def _allow(rules: int, path: str) -> None:
    rights = _EXECUTE | _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)  # noqa: PTH112 (pathlib is not loaded)
    rights |= _WRITE_FILE if path == os.devnull else 0
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, opened)
        libc.syscall(_ADD, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    finally:
        os.close(opened)
