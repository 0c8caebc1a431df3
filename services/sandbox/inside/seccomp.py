"""The seccomp filter: system calls that an answer's program never needs and an escape would.

A list of refusals, not of permissions: what Python itself calls differs between versions and machines.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from rollyard.services.sandbox.inside import landlock, libc, syscall_numbers

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE_THREAD = 0x10000
_AF_UNIX, _ALL_BUT_STREAMS = 1, 0xE
_O_TRUNC = 0o1000
_F_SETLEASE = 1024
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY = 0x40086602, 0x401C5820, 0x40806685

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS
_PR_SET_SECCOMP, _FILTER = 22, 2

Line = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def install(*, namespaces: bool) -> None:
    """Filter this process's system calls, and its children's, for ever. Raises OSError where the kernel has no seccomp.

    With `namespaces` false there are no child processes, only threads, no signals, and no changes to a file's data.
    """
    code = _assembled(os.uname().machine, namespaces)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(program))


def _assembled(machine: str, namespaces: bool) -> bytes:
    if machine not in _AUDIT:
        raise OSError(errno.ENOSYS, f"no seccomp filter is written for {machine}, only for {', '.join(_AUDIT)}")
    here = 0 if machine == "x86_64" else 1
    refused = {
        **syscall_numbers.NEVER,
        **({} if namespaces else syscall_numbers.NO_PROCESSES | syscall_numbers.NO_CHANGES),
    }
    lines = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _KILL)]
    lines += [(_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":  # the x32 calls are the same ones under other numbers
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for numbers in refused.values():
        if (number := numbers[here]) is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    # The flags of clone3 lie in memory, where a filter cannot look; libraries then fall back to clone.
    lines += [(_EQUAL, 0, 1, syscall_numbers.CLONE3[here] or 0), (_RETURN, 0, 0, _ABSENT)]
    for numbers, conditions in _by_arguments(namespaces):
        if (number := numbers[here]) is not None:
            lines += [(_EQUAL, 0, len(conditions) + 1, number), *conditions, (_RETURN, 0, 0, _ALLOW)]
    lines += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _by_arguments(namespaces: bool) -> Iterator[tuple[tuple[int, int] | tuple[int, None], list[Line]]]:
    """Calls, and when they are refused; each at most once."""
    # A limit of one's own may be lowered (first argument 0), nobody else's.
    yield syscall_numbers.PRLIMIT64, _unless(0, _EQUAL, 0)
    # Datagram sockets can send to any address without `connect`, among them the machine's own log.
    yield syscall_numbers.SOCKETPAIR, [*_unless(0, _EQUAL, _AF_UNIX), *_when(1, _ANY_BIT, _ALL_BUT_STREAMS)]
    # A lease on a file of the Python, where this user owns it, holds up everybody else who opens that file.
    leases = _when(1, _EQUAL, _F_SETLEASE)
    if namespaces:
        yield syscall_numbers.CLONE, _when(0, _ANY_BIT, libc.NAMESPACES)
        yield syscall_numbers.FCNTL, leases
        return
    yield syscall_numbers.CLONE, [*_when(0, _ANY_BIT, libc.NAMESPACES), *_unless(0, _ANY_BIT, _CLONE_THREAD)]
    # Who is to die with the process above stays so: no namespace would end it otherwise.
    yield syscall_numbers.PRCTL, _when(0, _EQUAL, libc.PR_SET_PDEATHSIG)
    if landlock.version() < landlock.HOLDS_LENGTHS:
        yield syscall_numbers.OPEN, _when(1, _ANY_BIT, _O_TRUNC)
        yield syscall_numbers.OPENAT, _when(2, _ANY_BIT, _O_TRUNC)
    # Who is to be signalled when something can be read, and what a file's owner may change of one that is open.
    yield syscall_numbers.FCNTL, [*leases, *_any_of(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)]
    yield (
        syscall_numbers.IOCTL,
        _any_of(_FIOSETOWN, _SIOCSPGRP, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY),
    )


def _any_of(*requests: int) -> list[Line]:
    """Refused if the second argument is one of `requests`."""
    return [line for request in requests for line in _when(1, _EQUAL, request)]


def _when(argument: int, test: int, value: int) -> list[Line]:
    """Refused if the test of the argument's lower half holds."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (test, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]


def _unless(argument: int, test: int, value: int) -> list[Line]:
    """Refused if it does not."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (test, 1, 0, value), (_RETURN, 0, 0, _REFUSE)]
