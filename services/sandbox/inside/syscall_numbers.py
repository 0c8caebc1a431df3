"""Numbers of the system calls that the filter refuses, on x86_64 and aarch64 (None if a call does not exist)."""

from __future__ import annotations

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
"""Calls that are refused depending on their arguments."""
