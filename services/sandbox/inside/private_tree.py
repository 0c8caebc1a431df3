"""Hides the host's files from a process: a private mount namespace in which only some files exist, read-only.

`build` makes the file system of a shell box in memory, with the host's programs; `enter` that of an answer.

Landlock refuses to open other files, but not to look whether they exist, how large they are and when they changed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterable

from rollyard.services.sandbox.inside import libc
from rollyard.services.sandbox.inside.jail_plan import BoxPlan

SYSTEM_PATHS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "alternatives",
    "debian_version",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "os-release",
    "perl",
)
"""Entries of /etc that programs need to run. The others may contain secrets of this host."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_FILES = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/resolv.conf": "",
}
_FOLDERS = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777, "/root": 0o700}
_PLAIN_FOLDERS = ("/etc", "/home", "/opt", "/srv", "/mnt", "/media", "/run", "/var/lib", "/var/log", "/var/run")
STAGE = "/tmp"
_MS_REMOUNT, _MNT_DETACH = 32, 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def build(plan: BoxPlan) -> list[str]:
    """Replace this process's file system by the box's. Return the parts that this host does not allow.

    Raises OSError if it cannot be built.
    """
    # Open before the stage hides /tmp, where visible folders may be.
    sources = [(path, _opened(path)) for path in dict.fromkeys(shown(plan)) if os.path.lexists(path)]
    start_stage(plan.storage)
    for path in _PLAIN_FOLDERS:
        os.makedirs(STAGE + path, exist_ok=True)  # noqa: PTH103
    for path, opened in sources:
        show(path, opened)
    for path, text in _FILES.items():
        with open(STAGE + path, "w") as file:  # noqa: PTH123
            file.write(text)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{STAGE}/dev/{name}")  # noqa: PTH211
    missing = _mount_proc()
    pivot()
    for path, mode in _FOLDERS.items():
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
        os.chmod(path, mode)  # noqa: PTH101
    for path in plan.folders:
        os.makedirs(path, exist_ok=True)  # noqa: PTH103
    return missing


def shown(plan: BoxPlan) -> list[str]:
    """Return the host's files and folders that a box can read."""
    return [*SYSTEM_PATHS, *(f"/etc/{name}" for name in _ETC), *(f"/dev/{name}" for name in _DEVICES), *plan.visible]


def start_stage(size: int) -> None:
    """Mount an empty file system of `size` bytes in memory on STAGE, invisible to the host."""
    libc.mount("none", "/", "none", libc.MS_REC | libc.MS_PRIVATE)
    libc.mount("tmpfs", STAGE, "tmpfs", libc.MS_NOSUID, f"size={size},mode=755")


def pivot() -> None:
    """Make STAGE this process's root, and let go of the host's."""
    os.chdir(STAGE)
    libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b".")
    _detach(b".")
    os.chdir("/")


def start_loopback() -> None:
    """Enable 127.0.0.1 in this network namespace, which has no other interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _opened(path: str) -> int | str:
    """Return a descriptor of the file or folder; for a link, its target."""
    if os.path.islink(path):  # noqa: PTH114
        return os.readlink(path)  # noqa: PTH115
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def show(path: str, opened: int | str) -> None:
    """Show an opened file or folder of the host read-only at `path` below STAGE, or a link to `opened`."""
    target = STAGE + path
    os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120
    if isinstance(opened, str):
        os.symlink(opened, target)  # noqa: PTH211
        return
    mode = os.fstat(opened).st_mode
    if stat.S_ISDIR(mode):
        os.makedirs(target, exist_ok=True)  # noqa: PTH103
    elif not os.path.exists(target):  # noqa: PTH110
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    source = f"/proc/self/fd/{opened}"
    libc.mount(source, target, "none", libc.MS_BIND | libc.MS_REC)
    if not stat.S_ISCHR(mode):
        # Flags of the original mount are locked in a user namespace: a remount must repeat them.
        kept = os.statvfs(target).f_flag & (libc.MS_NOSUID | libc.MS_NODEV | 8 | 1024 | 2048)
        libc.mount("none", target, "none", _MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY | libc.MS_NOSUID | kept)
    os.close(opened)


def _mount_proc() -> list[str]:
    os.makedirs(f"{STAGE}/proc", exist_ok=True)  # noqa: PTH103
    try:
        libc.mount("proc", f"{STAGE}/proc", "proc", libc.MS_NOSUID | libc.MS_NODEV)
    except OSError as error:  # a container that hides parts of its own /proc
        return [f"/proc is empty: {error.strerror}"]
    return []


def _detach(path: bytes) -> None:
    found = ctypes.CDLL(None, use_errno=True).umount2(path, _MNT_DETACH)
    libc.checked(found, "umount2")


def enter(files: Iterable[tuple[str, str]]) -> None:
    """Replace this process's file tree by one that contains only `files`, as pairs of source and target, and /proc.

    Raises OSError if the host does not allow it; some of the steps may then have been taken.
    """
    try:
        libc.unshare(libc.CLONE_NEWNS)
    except OSError:  # no CAP_SYS_ADMIN
        libc.enter_user_namespace(os.getuid(), os.getgid(), libc.CLONE_NEWNS)
    # In the new namespace, whose mounts they must belong to, and before the stage hides /tmp.
    opened = [(target, os.open(source, os.O_PATH | os.O_CLOEXEC)) for source, target in files]
    start_stage(1 << 20)
    for target, descriptor in opened:
        show(target, descriptor)
    os.makedirs(f"{STAGE}/proc", exist_ok=True)  # noqa: PTH103
    libc.mount("/proc", f"{STAGE}/proc", "none", libc.MS_BIND | libc.MS_REC)  # the monitor reads it
    pivot()
