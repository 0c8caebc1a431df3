"""Locking in: fresh namespaces, an empty /tmp and /proc, limits, and then the doors that shut behind a process."""

from __future__ import annotations

import os
import resource

from rollyard.services.sandbox.inside import landlock, libc, seccomp
from rollyard.services.sandbox.inside.jail_plan import Plan

_OWN = libc.CLONE_NEWPID | libc.CLONE_NEWNS | libc.CLONE_NEWIPC
_KEEPERS = 2
"""Processes of ours that count against the limit: the warden and the tests."""
_ROOM = 256
"""For what the machine starts meanwhile, where the limit cannot be on one jail alone."""


def separate() -> None:
    """Fresh namespaces: the next child is process 1 of its own. Raises OSError.

    A user namespace of its own makes the limit on processes this answer's alone.
    """
    libc.enter_user_namespace(os.getuid(), os.getgid(), _OWN)


def furnish(plan: Plan) -> None:
    """A /tmp of its own and nothing in /proc, or else nothing but the Python to open. Raises OSError."""
    if plan.landlock:
        _bound_threads(plan)
        # The answer locks itself in once more, further in: then the tests may signal it, and it not them.
        libc.no_new_privileges()
        landlock.restrict(plan.rules)
    if not plan.namespaces:
        return
    flags = libc.MS_NOSUID | libc.MS_NODEV
    below = [path for path in plan.readable if path.startswith("/tmp/") and os.path.exists(path)]  # noqa: PTH110
    kept = [(path, os.open(path, os.O_PATH)) for path in below]
    libc.mount("tmpfs", "/tmp", "tmpfs", flags, f"size={plan.tmp_size},nr_inodes=4096,mode=700")
    for path, opened in kept:  # a Python that lies below /tmp stays in view
        _bind(opened, path)
    libc.mount("tmpfs", "/proc", "tmpfs", flags | libc.MS_RDONLY, "size=0,nr_inodes=1,mode=555")


def _bind(opened: int, path: str) -> None:
    source = f"/proc/self/fd/{opened}"
    is_folder = os.path.isdir(source)  # noqa: PTH112 (pathlib is not loaded, here and below)
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    libc.mount(source, path, "none", libc.MS_BIND | libc.MS_REC)
    os.close(opened)


def confine(plan: Plan, *, answer: bool) -> None:
    """Limits and doors that no later step opens again; the `answer` is given less than the tests. Raises OSError."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: plan.memory,
        resource.RLIMIT_FSIZE: plan.file_size,
        resource.RLIMIT_NOFILE: plan.open_files,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if plan.namespaces:
        limits[resource.RLIMIT_NPROC] = plan.processes + _KEEPERS
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    # The second in between turns a limit that was met into a signal of its own.
    resource.setrlimit(resource.RLIMIT_CPU, (plan.cpu_s, plan.cpu_s + 1))
    libc.drop_capabilities()
    libc.no_new_privileges()
    if plan.landlock and answer:
        landlock.restrict(plan.rules)
    if plan.seccomp:
        seccomp.install(namespaces=plan.namespaces or not answer)


def _bound_threads(plan: Plan) -> None:
    """Without a user namespace the kernel counts all that this user runs, which is at most what the machine runs."""
    try:
        with open("/proc/loadavg") as file:  # noqa: PTH123 (pathlib is not loaded)
            running = int(file.read().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return
    most = running + plan.processes + _KEEPERS + _ROOM
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
