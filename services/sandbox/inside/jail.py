"""Confines a process: new namespaces, an empty /tmp and /proc, resource limits, and irrevocable restrictions."""

from __future__ import annotations

import os
import resource

from rollyard.services.sandbox.inside import landlock, libc, seccomp
from rollyard.services.sandbox.inside.jail_plan import Plan

_NAMESPACES = libc.CLONE_NEWPID | libc.CLONE_NEWNS | libc.CLONE_NEWIPC
_OWN_PROCESSES = 2
"""Number of Rollyard's own processes that count towards the limit: the monitor and the tests."""
_THREAD_HEADROOM = 256
"""Number of other threads that the user may start, if the limit cannot apply to one jail alone."""


def enter_namespaces() -> None:
    """Enter new namespaces, in which the next child becomes process 1. Raises OSError on failure.

    In a separate user namespace, the process limit applies to this answer alone.
    """
    libc.enter_user_namespace(os.getuid(), os.getgid(), _NAMESPACES)


def prepare_file_access(plan: Plan) -> None:
    """Mount a private /tmp and an empty /proc, or restrict file access with Landlock. Raises OSError on failure."""
    if plan.landlock:
        _bound_threads(plan)
        # The answer restricts itself again later, so that the tests may signal it, but not vice versa.
        libc.no_new_privileges()
        landlock.restrict(plan.rules)
    if not plan.namespaces:
        return
    flags = libc.MS_NOSUID | libc.MS_NODEV
    below = [path for path in plan.readable if path.startswith("/tmp/") and os.path.exists(path)]  # noqa: PTH110
    kept = [(path, os.open(path, os.O_PATH)) for path in below]
    libc.mount("tmpfs", "/tmp", "tmpfs", flags, f"size={plan.tmp_size},nr_inodes=4096,mode=700")
    for path, opened in kept:  # keep an interpreter under /tmp visible
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
    """Apply irrevocable limits and restrictions, stricter for the `answer` than for the tests."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: plan.memory,
        resource.RLIMIT_FSIZE: plan.file_size,
        resource.RLIMIT_NOFILE: plan.open_files,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if plan.namespaces:
        limits[resource.RLIMIT_NPROC] = plan.processes + _OWN_PROCESSES
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    # The extra second lets SIGXCPU, the signal of the soft limit, arrive before SIGKILL.
    resource.setrlimit(resource.RLIMIT_CPU, (plan.cpu_s, plan.cpu_s + 1))
    libc.drop_capabilities()
    libc.no_new_privileges()
    if plan.landlock and answer:
        landlock.restrict(plan.rules)
    if plan.seccomp:
        seccomp.install(namespaces=plan.namespaces or not answer)


def _bound_threads(plan: Plan) -> None:
    max_threads = thread_limit(plan.processes + _OWN_PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (max_threads, max_threads))


def thread_limit(own: int) -> int:
    """Return a limit that lets one jail start about `own` threads, relative to the number running on the host.

    Without a user namespace, the kernel's limit covers all threads of the user, not only those of this jail.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    try:
        with open("/proc/loadavg") as file:  # noqa: PTH123 (pathlib is not loaded)
            running = int(file.read().split()[3].partition("/")[2])
    except (OSError, ValueError, IndexError):
        return hard
    found = running + own + _THREAD_HEADROOM
    return found if hard == resource.RLIM_INFINITY else min(found, hard)
