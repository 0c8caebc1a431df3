"""The seccomp filter: system calls that an answer's program never needs and an escape would.

A list of refusals, not of permissions: what Python itself calls differs between versions and machines.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from services.sandbox.inside import kernel

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEVER = {
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
    "mknodat": (259, 33), "mknod": (133, None), "swapon": (167, 224), "swapoff": (168, 225), "quotactl": (179, 60),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    # the kernel's larger and rarer doors
    "bpf": (321, 280), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116),
    "personality": (135, 92), "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "acct": (163, 89), "reboot": (169, 142), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    # the machine's name and clocks
    "sethostname": (170, 161), "setdomainname": (171, 162), "clock_settime": (227, 112), "settimeofday": (164, 170),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    # the network; socketpair stays, it reaches nobody
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    # System V memory and queues outlive their process
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
}  # fmt: skip
_NO_PROCESSES = {
    "fork": (57, None), "vfork": (58, None), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "setsid": (112, 157), "setpgid": (109, 154),
}  # fmt: skip
"""Where no process namespace bounds them: no children, no signals."""
_CLONE, _CLONE3, _PRLIMIT64, _PRCTL = (56, 220), (435, 435), (302, 261), (157, 167)
_CLONE_THREAD = 0x10000

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS
_PR_SET_SECCOMP, _FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def install(*, processes: bool) -> None:
    """Filter this process's system calls, and its children's, for ever. Raises OSError where the kernel has no seccomp.

    With `processes` false there are no child processes and no signals either, only threads.
    """
    code = _assembled(os.uname().machine, processes)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    kernel.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(program))


def _assembled(machine: str, processes: bool) -> bytes:
    if machine not in _AUDIT:
        raise OSError(errno.ENOSYS, f"no seccomp filter is written for {machine}, only for {', '.join(_AUDIT)}")
    here = 0 if machine == "x86_64" else 1
    refused = {**_NEVER, **({} if processes else _NO_PROCESSES)}
    lines = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _AUDIT[machine]), (_RETURN, 0, 0, _KILL)]
    lines += [(_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":  # the x32 calls are the same ones under other numbers
        lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for numbers in refused.values():
        if (number := numbers[here]) is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    # The flags of clone3 lie in memory, where a filter cannot look; libraries then fall back to clone.
    lines += [(_EQUAL, 0, 1, _CLONE3[here]), (_RETURN, 0, 0, _ABSENT)]
    lines += [(_EQUAL, 0, 4 if processes else 6, _CLONE[here]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [(_ANY_BIT, 0, 1, kernel.NAMESPACES), (_RETURN, 0, 0, _REFUSE)]
    if not processes:
        lines += [(_ANY_BIT, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _REFUSE)]
    lines += [(_RETURN, 0, 0, _ALLOW)]
    if not processes:
        # Who is to die with the process above stays so: no namespace would end it otherwise.
        lines += [(_EQUAL, 0, 3, _PRCTL[here]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
        lines += [(_EQUAL, 0, 1, kernel.PR_SET_PDEATHSIG), (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, _NUMBER)]
    # A limit of one's own may be lowered (first argument 0), nobody else's.
    lines += [(_EQUAL, 0, 3, _PRLIMIT64[here]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    lines += [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)
