"""Linux system calls for sandboxing that the standard library does not provide. They raise OSError on failure."""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
NAMESPACES = CLONE_NEWNS | 0x2000000 | 0x4000000 | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | 0x40000000
"""The flags of all namespaces that `clone` supports."""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1
_PIDFD_OPEN = 434
"""System call number, which is the same on x86_64 and aarch64."""
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522


@lru_cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    return checked(_libc().syscall(ctypes.c_long(number), *arguments), f"system call {number}")


def checked(result: int, what: str) -> int:
    """Return `result`. Raises OSError with the C library's errno if it is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    checked(_libc().unshare(flags), "unshare")


def enter_user_namespace(user: int, group: int, flags: int = 0) -> None:
    """Enter a new user namespace that maps this user to `user`, and the other new namespaces in `flags`."""
    outside = ("uid_map", user, os.getuid()), ("gid_map", group, os.getgid())
    unshare(CLONE_NEWUSER | flags)
    for name, text in (("setgroups", "deny"), *((name, f"{inner} {outer} 1") for name, inner, outer in outside)):
        opened = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(opened, text.encode())
        finally:
            os.close(opened)


def enter_namespace(descriptor: int) -> None:
    """Move this thread into the namespace of an opened file of /proc/PID/ns."""
    checked(_libc().setns(descriptor, 0), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    found = _libc().mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    checked(found, f"mount {target}")


def prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    checked(_libc().prctl(option, *words), f"prctl {option}")


def pidfd_open(process: int) -> int:
    """Return a file descriptor that becomes readable when `process` exits.

    `os.pidfd_open` is missing in interpreters built on older systems, such as those that uv installs.
    """
    return syscall(_PIDFD_OPEN, ctypes.c_int(process), ctypes.c_uint(0))


def die_with_parent(signal: int) -> None:
    """Have the kernel send `signal` to this process when its parent exits."""
    prctl(PR_SET_PDEATHSIG, signal)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent exits."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Prevent unprivileged processes from tracing this process or reading its memory."""
    prctl(_PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undo `hide_memory`, which a change of user implies: this process owns its files in /proc again."""
    prctl(_PR_SET_DUMPABLE, 1)


def no_new_privileges() -> None:
    """Make this process and its children ignore setuid bits, irrevocably and across exec."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop all capabilities, including those that exec could restore."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # beyond the last capability, or not permitted, so there is nothing to drop
            break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    checked(_libc().capset(header, none), "capset")
