"""Kills processes of engines whose reaper has died. They are found by an environment variable that they inherit.

The process guard kills Python processes within milliseconds; this module finds all others. SPT_NOENV keeps the variable
readable; otherwise vLLM would overwrite it when it sets process titles.
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
"""Environment variable that contains the folder of the process's engine."""
FOLDERS = "rollyard-engine-"
"""Prefix of engine folders."""
YOUNG_S = 600.0


def end_orphans() -> list[int]:
    """Kill every process of this user whose engine has no reaper, and return their ids.

    Python's resource trackers are spared; they exit after they have unlinked the shared memory of the other processes.
    """
    return [pid for pid, folder in _marked() if not has_reaper(folder) and not _is_tracker(pid) and _killed(pid)]


def remove_folders(within: Path) -> None:
    """Remove the folders of engines without a reaper. New folders are spared, because their reapers may still be
    starting.
    """
    for folder in within.glob(f"{FOLDERS}*"):
        with contextlib.suppress(OSError):
            stat = folder.stat()
            if stat.st_uid == os.getuid() and time.time() - stat.st_mtime > YOUNG_S and not has_reaper(folder):
                shutil.rmtree(folder, ignore_errors=True)


def engine_processes(folder: Path) -> list[int]:
    """Return the ids of the engine's processes."""
    return [pid for pid, found in _marked() if found == folder]


def has_reaper(folder: Path) -> bool:
    """Return True while the engine's reaper holds its lock."""
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
    # In another mount namespace (a container) the path refers to another folder.
    own_namespace = _namespace("self")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid != os.getuid():
                continue
            for entry in (process / "environ").read_bytes().split(b"\0"):
                if entry.startswith(prefix) and _namespace(process.name) == own_namespace and _runs(process):
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
