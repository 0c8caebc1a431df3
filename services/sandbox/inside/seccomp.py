"""The seccomp filter: refuses system calls that an answer never needs but an escape from the jail would.

It is a deny list, because the calls that Python itself makes differ between versions and hosts.
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
_AF_UNIX, _NON_STREAM_BITS = 1, 0xE
_SHELL_SOCKETS = (_AF_UNIX, 2, 10, 16)
"""Address families: local, IPv4, IPv6, and netlink, which programs use to list network interfaces."""
_O_TRUNC = 0o1000
_F_SETLEASE = 1024
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _FIOSETOWN, _SIOCSPGRP = 8, 10, 15, 0x8901, 0x8902
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY = 0x40086602, 0x401C5820, 0x40806685

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS
_PR_SET_SECCOMP, _FILTER = 22, 2

Instruction = tuple[int, int, int, int]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def install(*, namespaces: bool, shell: bool = False) -> None:
    """Install a permanent seccomp filter for this process and its children. Raises OSError if the kernel lacks seccomp.

    Without `namespaces`, child processes (but not threads), signals and changes to file metadata are also refused. A
    `shell`, which needs namespaces, may also use sockets, queues and priorities, which its namespaces separate.
    """
    code = _assemble(os.uname().machine, namespaces, shell)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(program))


def _assemble(machine: str, namespaces: bool, shell: bool) -> bytes:
    if machine not in _AUDIT:
        raise OSError(errno.ENOSYS, f"the seccomp filter does not support {machine}, only {', '.join(_AUDIT)}")
    architecture_index = 0 if machine == "x86_64" else 1
    refused = {
        **syscall_numbers.NEVER,
        **(
            {}
            if namespaces
            else syscall_numbers.NO_PROCESSES | syscall_numbers.NO_CHANGES | syscall_numbers.NO_WATCHING
        ),
    }
    instructions = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _KILL)]
    instructions += [(_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":  # x32 calls are the same calls with other numbers
        instructions += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for name in syscall_numbers.SHELL if shell else ():
        del refused[name]
    for numbers in refused.values():
        if (number := numbers[architecture_index]) is not None:
            instructions += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    # A filter cannot read the flags of clone3, which are in memory; libraries fall back to clone.
    instructions += [(_EQUAL, 0, 1, syscall_numbers.CLONE3[architecture_index] or 0), (_RETURN, 0, 0, _ABSENT)]
    for numbers, conditions in _by_arguments(namespaces, shell):
        if (number := numbers[architecture_index]) is not None:
            instructions += [(_EQUAL, 0, len(conditions) + 1, number), *conditions, (_RETURN, 0, 0, _ALLOW)]
    instructions += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in instructions)


def _by_arguments(
    namespaces: bool, shell: bool
) -> Iterator[tuple[tuple[int, int] | tuple[int, None], list[Instruction]]]:
    """Yield system calls, each at most once, with the conditions under which they are refused."""
    # A process may lower its own limits (first argument 0), but not those of others.
    yield syscall_numbers.PRLIMIT64, _refuse_unless(0, _EQUAL, 0)
    # Datagram sockets can send to any address without `connect`, e.g. to the host's log.
    if shell:  # AF_VSOCK reaches the host of a virtual machine from every network namespace
        yield syscall_numbers.SOCKET, _refuse_unless_any(0, _SHELL_SOCKETS)
    else:
        yield (
            syscall_numbers.SOCKETPAIR,
            [*_refuse_unless(0, _EQUAL, _AF_UNIX), *_refuse_if(1, _ANY_BIT, _NON_STREAM_BITS)],
        )
    # A lease on a file of the interpreter, if this user owns it, blocks other processes that open the file.
    leases = _refuse_if(1, _EQUAL, _F_SETLEASE)
    if namespaces:
        yield syscall_numbers.CLONE, _refuse_if(0, _ANY_BIT, libc.NAMESPACES)
        yield syscall_numbers.FCNTL, leases
        return
    yield (
        syscall_numbers.CLONE,
        [*_refuse_if(0, _ANY_BIT, libc.NAMESPACES), *_refuse_unless(0, _ANY_BIT, _CLONE_THREAD)],
    )
    # The parent-death signal must stay set, because no namespace would end the process otherwise.
    yield syscall_numbers.PRCTL, _refuse_if(0, _EQUAL, libc.PR_SET_PDEATHSIG)
    if landlock.version() < landlock.RESTRICTS_TRUNCATE:
        yield syscall_numbers.OPEN, _refuse_if(1, _ANY_BIT, _O_TRUNC)
        yield syscall_numbers.OPENAT, _refuse_if(2, _ANY_BIT, _O_TRUNC)
    # Refuse I/O signals to other processes, and attribute changes that a file's owner could make.
    yield syscall_numbers.FCNTL, [*leases, *_refuse_any_of(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)]
    yield (
        syscall_numbers.IOCTL,
        _refuse_any_of(_FIOSETOWN, _SIOCSPGRP, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY),
    )


def _refuse_any_of(*requests: int) -> list[Instruction]:
    """Refuse the call if its second argument is one of `requests`."""
    return [line for request in requests for line in _refuse_if(1, _EQUAL, request)]


def _refuse_if(argument: int, test: int, value: int) -> list[Instruction]:
    """Refuse the call if `test` holds for the lower 32 bits of the argument."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (test, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]


def _refuse_unless(argument: int, test: int, value: int) -> list[Instruction]:
    """Refuse the call unless `test` holds for the lower 32 bits of the argument."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (test, 1, 0, value), (_RETURN, 0, 0, _REFUSE)]


def _refuse_unless_any(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Refuse the call unless the argument is one of `values`."""
    tests = [(_EQUAL, len(values) - number, 0, value) for number, value in enumerate(values)]
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *tests, (_RETURN, 0, 0, _REFUSE)]
