"""Orphans: processes of an engine whose keeper is gone, found by the variable that all of them inherit.

The guard inside them ends them within milliseconds; this finds those that are not Python. SPT_NOENV keeps the variable
readable: vLLM retitles its processes, which would write over it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import time
from pathlib import Path

MARK = "ROLLYARD_ENGINE"
"""Names the folder of the engine that a process belongs to."""
FOLDERS = "rollyard-engine-"
"""How the names of such folders begin."""
YOUNG_S = 600.0


def end_orphans() -> list[int]:
    """Kill every process of this user whose engine has no keeper; their ids.

    Python's resource trackers are left to end by themselves, after they have unlinked the shared memory of the others.
    """
    return [pid for pid, folder in _marked() if not has_reaper(folder) and not _is_tracker(pid) and _killed(pid)]


def remove_folders(within: Path) -> None:
    """Remove what engines without a keeper have left there; one that is just being made has none yet."""
    for folder in within.glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):
            stat = folder.stat()
            if stat.st_uid == os.getuid() and time.time() - stat.st_mtime > YOUNG_S and not has_reaper(folder):
                shutil.rmtree(folder, ignore_errors=True)


def engine_processes(folder: Path) -> list[int]:
    """The processes of that engine."""
    return [pid for pid, found in _marked() if found == folder]


def has_reaper(folder: Path) -> bool:
    """True while the engine's keeper holds its lock."""
    try:
        descriptor = os.open(folder / "alive", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _marked() -> list[tuple[int, Path]]:
    prefix = f"{MARK}=".encode()
    # In another mount namespace (a container) the folder named is not the one seen here.
    ours = _namespace("self")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid != os.getuid():
                continue
            for entry in (process / "environ").read_bytes().split(b"\0"):
                if entry.startswith(prefix) and _namespace(process.name) == ours and _runs(process):
                    found.append((int(process.name), Path(os.fsdecode(entry[len(prefix) :]))))
    return found


def _runs(process: Path) -> bool:
    return (process / "stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _namespace(process: str) -> str:
    return str(Path("/proc", process, "ns", "mnt").readlink())


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
