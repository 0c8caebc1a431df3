"""Hides the host's files from a process: a private mount namespace in which only some files exist, read-only.

Landlock refuses to open other files, but not to look whether they exist, how large they are and when they changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rollyard.services.sandbox.inside import libc
from rollyard.services.sandbox.inside.box import root


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
    root.start_stage(1 << 20)
    for target, descriptor in opened:
        root.show(target, descriptor)
    os.makedirs(f"{root.STAGE}/proc", exist_ok=True)  # noqa: PTH103
    libc.mount("/proc", f"{root.STAGE}/proc", "none", libc.MS_BIND | libc.MS_REC)  # the monitor reads it
    root.pivot()
