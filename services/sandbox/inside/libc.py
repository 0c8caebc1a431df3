"""What Linux offers for locking a process in and the standard library does not call: names for it, and errors."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
NAMESPACES = CLONE_NEWNS | 0x2000000 | 0x4000000 | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | 0x40000000
"""Every namespace that `clone` knows."""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
_PIDFD_OPEN = 434
"""On x86_64 and on aarch64."""
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522


@lru_cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """The result of system call `number`. Raises OSError."""
    return checked(_libc().syscall(ctypes.c_long(number), *arguments), f"system call {number}")


def checked(result: int, what: str) -> int:
    """`result`, unless it is -1: then raises OSError with the C library's errno."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for fresh ones. Raises OSError."""
    checked(_libc().unshare(flags), "unshare")


def enter_user_namespace(user: int, group: int, flags: int = 0) -> None:
    """A fresh user namespace, and what `flags` name, in which this user is `user`. Raises OSError."""
    outside = ("uid_map", user, os.getuid()), ("gid_map", group, os.getgid())
    unshare(CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), *((name, f"{inner} {outer} 1") for name, inner, outer in outside)):
        opened = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(opened, text.encode())
        finally:
            os.close(opened)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system, or bind a folder. Raises OSError."""
    found = _libc().mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    checked(found, f"mount {target}")


def prctl(option: int, *arguments: int) -> None:
    """Change something about this process. Raises OSError."""
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    checked(_libc().prctl(option, *words), f"prctl {option}")


def pidfd_open(process: int) -> int:
    """A descriptor that can be polled for the end of `process`. Pythons built on older systems, as uv installs them,
    have no `os.pidfd_open`.
    """
    return syscall(_PIDFD_OPEN, ctypes.c_int(process), ctypes.c_uint(0))


def die_with_parent(signal: int) -> None:
    """Have the kernel send `signal` to this process when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal)


def hide_memory() -> None:
    """Nobody without privileges may trace this process or read its memory."""
    prctl(_PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """For ever, also through exec: no setuid program helps this process or its children."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability, also those that exec could bring back. A process that holds none keeps none."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the last one, or without the right to shrink a set that gives nothing
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    checked(_libc().capset(header, none), "capset")
