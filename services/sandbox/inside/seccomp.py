"""The seccomp filter: refuses system calls that an answer never needs but an escape from the jail would.

It is a deny list, because the calls that Python itself makes differ between versions and hosts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Literal

from rollyard.services.sandbox.inside import landlock, libc

# Numbers of the system calls that the filter refuses, on x86_64 and aarch64 (None if a call does not exist).

NEVER = {
    # tracing and other processes' memory, descriptors, limits and scheduling
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "setpriority": (141, 140), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239),
    # file systems and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "statmount": (457, 457), "listmount": (458, 458), "open_tree_attr": (467, 467), "listns": (470, 470),
    "mknodat": (259, 33), "mknod": (133, None), "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    # rarely used interfaces with a large attack surface
    "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116),
    "personality": (135, 92), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "acct": (163, 89), "reboot": (169, 142), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # the host's name and clocks
    "sethostname": (170, 161), "setdomainname": (171, 162), "clock_settime": (227, 112), "settimeofday": (164, 170),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    # the network; seccomp.py allows part of socketpair
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    # System V memory and queues outlive their process
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
}  # fmt: skip
NO_PROCESSES = {
    "fork": (57, None), "vfork": (58, None), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
"""Calls that are refused without a process namespace: they start processes or send signals."""
NO_CHANGES = {
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14), "lremovexattr": (198, 15),
    "fremovexattr": (199, 16), "removexattrat": (466, 466), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88), "truncate": (76, 45), "file_setattr": (469, 469),
    "openat2": (437, 437),
}  # fmt: skip
"""Calls that are refused without a mount namespace.

Landlock does not restrict changes to modes, owners and times (and, before version 3, lengths) by a file's owner, who
may be this user. A filter cannot read the arguments of openat2, which are in memory.
"""
NO_WATCHING = {
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "fanotify_mark": (301, 263), "chdir": (80, 49), "fchdir": (81, 50), "readlink": (89, None),
    "readlinkat": (267, 78), "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10),
    "getxattrat": (464, 464), "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13),
    "listxattrat": (465, 465), "statfs": (137, 43), "ustat": (136, None),
}  # fmt: skip
"""Calls that are refused without a mount namespace: Landlock does not keep them from files that cannot be opened."""
SHELL = (
    "socket", "connect", "bind", "listen", "shmget", "semget", "msgget", "mq_open", "memfd_create", "mknodat", "mknod",
    "setpriority", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set",
    "pidfd_open", "pidfd_send_signal",
)  # fmt: skip
"""Calls of NEVER that a shell box allows: its namespaces and the lack of capabilities confine them."""
CLONE, CLONE3, PRLIMIT64, PRCTL = (56, 220), (435, 435), (302, 261), (157, 167)
SOCKET, SOCKETPAIR, FCNTL, IOCTL, OPEN, OPENAT = (41, 198), (53, 199), (72, 25), (16, 29), (2, None), (257, 56)
SENDTO, SENDMSG, SENDMMSG = (44, 206), (46, 211), (307, 269)
"""Calls that are refused depending on their arguments."""


_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE_THREAD = 0x10000
_AF_UNIX, _NON_STREAM_BITS = 1, 0xE
_SHELL_SOCKETS = (_AF_UNIX, 2, 10, 16)
"""Address families: local, IPv4, IPv6, and netlink, which programs use to list network interfaces."""
_IPPROTO_TCP, _MSG_FASTOPEN = 6, 0x20000000
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


Shell = Literal["", "namespaces", "landlock"]


def install(*, namespaces: bool, shell: Shell = "") -> None:
    """Install a permanent seccomp filter for this process and its children. Raises OSError if the kernel lacks seccomp.

    Without `namespaces`, child processes (but not threads), signals and changes to file metadata are also refused,
    except for a `shell`. One in namespaces may also use sockets, queues and priorities, which these separate; one that
    Landlock confines only TCP sockets, `connect`, which it restricts, and pairs of local stream sockets.
    """
    code = _assemble(os.uname().machine, namespaces, shell)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(program))


def _assemble(machine: str, namespaces: bool, shell: Shell) -> bytes:
    if machine not in _AUDIT:
        raise OSError(errno.ENOSYS, f"the seccomp filter does not support {machine}, only {', '.join(_AUDIT)}")
    architecture_index = 0 if machine == "x86_64" else 1
    refused = {**NEVER, **({} if namespaces or shell else NO_PROCESSES | NO_CHANGES | NO_WATCHING)}
    instructions = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _KILL)]
    instructions += [(_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":  # x32 calls are the same calls with other numbers
        instructions += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for name in {"": (), "namespaces": SHELL, "landlock": ("socket", "connect")}[shell]:
        del refused[name]
    for numbers in refused.values():
        if (number := numbers[architecture_index]) is not None:
            instructions += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    # A filter cannot read the flags of clone3, which are in memory; libraries fall back to clone.
    instructions += [(_EQUAL, 0, 1, CLONE3[architecture_index] or 0), (_RETURN, 0, 0, _ABSENT)]
    for numbers, conditions in _by_arguments(namespaces, shell):
        if (number := numbers[architecture_index]) is not None:
            instructions += [(_EQUAL, 0, len(conditions) + 1, number), *conditions, (_RETURN, 0, 0, _ALLOW)]
    instructions += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in instructions)


def _by_arguments(
    namespaces: bool, shell: Shell
) -> Iterator[tuple[tuple[int, int] | tuple[int, None], list[Instruction]]]:
    """Yield system calls, each at most once, with the conditions under which they are refused."""
    # A process may lower its own limits (first argument 0), but not those of others.
    yield PRLIMIT64, _refuse_unless(_EQUAL, 0)
    # Datagram sockets can send to any address without `connect`, e.g. to the host's log.
    if shell == "namespaces":  # AF_VSOCK reaches the host of a virtual machine from every network namespace
        yield SOCKET, _refuse_unless_any(0, _SHELL_SOCKETS)
    else:
        yield (SOCKETPAIR, [*_refuse_unless(_EQUAL, _AF_UNIX), *_refuse_if(1, _ANY_BIT, _NON_STREAM_BITS)])
    if shell == "landlock":
        # Landlock restricts TCP alone: neither the host's local sockets nor other protocols over IP.
        tcp = [*_refuse_if(1, _ANY_BIT, _NON_STREAM_BITS), *_refuse_unless_any(2, (0, _IPPROTO_TCP))]
        yield SOCKET, [*_refuse_unless_any(0, (2, 10)), *tcp]
        # TCP Fast Open connects without the call that Landlock restricts.
        yield SENDTO, _refuse_if(3, _ANY_BIT, _MSG_FASTOPEN)
        yield SENDMSG, _refuse_if(2, _ANY_BIT, _MSG_FASTOPEN)
        yield SENDMMSG, _refuse_if(3, _ANY_BIT, _MSG_FASTOPEN)
    # A lease on a file of the interpreter, if this user owns it, blocks other processes that open the file.
    leases = _refuse_if(1, _EQUAL, _F_SETLEASE)
    if namespaces or shell:
        yield CLONE, _refuse_if(0, _ANY_BIT, libc.NAMESPACES)
        yield FCNTL, leases
        return
    yield (CLONE, [*_refuse_if(0, _ANY_BIT, libc.NAMESPACES), *_refuse_unless(_ANY_BIT, _CLONE_THREAD)])
    # The parent-death signal must stay set, because no namespace would end the process otherwise.
    yield PRCTL, _refuse_if(0, _EQUAL, libc.PR_SET_PDEATHSIG)
    if landlock.version() < landlock.RESTRICTS_TRUNCATE:
        yield OPEN, _refuse_if(1, _ANY_BIT, _O_TRUNC)
        yield OPENAT, _refuse_if(2, _ANY_BIT, _O_TRUNC)
    # Refuse I/O signals to other processes, and attribute changes that a file's owner could make.
    yield FCNTL, [*leases, *_refuse_any_of(_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)]
    yield (IOCTL, _refuse_any_of(_FIOSETOWN, _SIOCSPGRP, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR, _FS_IOC_ENABLE_VERITY))


def _refuse_any_of(*requests: int) -> list[Instruction]:
    return [line for request in requests for line in _refuse_if(1, _EQUAL, request)]


def _refuse_if(argument: int, test: int, value: int) -> list[Instruction]:
    """Refuse the call if `test` holds for the lower 32 bits of the argument."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (test, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]


def _refuse_unless(test: int, value: int) -> list[Instruction]:
    """Refuse the call unless `test` holds for the lower 32 bits of its first argument."""
    return [(_LOAD, 0, 0, _ARGUMENTS), (test, 1, 0, value), (_RETURN, 0, 0, _REFUSE)]


def _refuse_unless_any(argument: int, values: tuple[int, ...]) -> list[Instruction]:
    """Refuse the call unless the argument is one of `values`."""
    tests = [(_EQUAL, len(values) - number, 0, value) for number, value in enumerate(values)]
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *tests, (_RETURN, 0, 0, _REFUSE)]
