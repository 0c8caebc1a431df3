"""Files that exactly one of several processes creates, on any host of a shared file system.

link(2) and O_EXCL are atomic on local file systems and on NFS; flock often works on one host only, or not at all.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.io.locked_files import sync_folder

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_PROBE = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(3)
"""


def create_exclusive(path: Path, data: bytes) -> bool:
    """Create `path` with this content; return False if it exists. It appears complete or not at all.

    Only on a file system without hard links, a crash can leave it incomplete. Raises OSError if it cannot be written.
    """
    if path.exists():
        return False
    temporary = unique_sibling(path)
    try:
        _write_new(temporary, data)
        try:
            os.link(temporary, path)
        except OSError as error:
            # If an NFS reply is lost, the repeated request reports EEXIST for the link that the first one made.
            if temporary.stat().st_nlink > 1:
                return True
            if error.errno not in _NO_LINKS:
                if error.errno == errno.EEXIST:
                    return False
                raise
            try:
                _write_new(path, data)
            except FileExistsError:
                return False
        return True
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_unsynced(path: Path, data: bytes) -> None:
    """Replace a file atomically without fsync. The temporary name is unique over all hosts. Raises OSError."""
    temporary = unique_sibling(path)
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def unique_sibling(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


def flock_note(folder: Path) -> str:
    """Try flock in `folder` with two processes of this host, and return a sentence about what was found."""
    import fcntl

    probe = unique_sibling(folder / "flock_probe")
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return f"{folder}: flock is not supported ({error.strerror}); every worker writes to its own shard"
        status = subprocess.run([sys.executable, "-S", "-c", _PROBE, str(probe)], check=False).returncode
    finally:
        os.close(fd)
        with suppress(OSError):
            probe.unlink()
    works = "excludes a second process on this host" if status == 3 else "does not exclude a second process"
    return f"{folder}: flock {works}; leases do not depend on it"


def _write_new(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(path.parent)
