"""The code of a server, which a collection's identity contains: a digest of each file in the server's own folder.

Code that the server imports from elsewhere is not part of it; the folder's git revision is recorded, so that a reader
can find it. Settings are not part of it either, because the manifest compares them by name; neither are the files in
`configs/`, from which settings come. Rows (`.jsonl`) have a digest of their own in the identity.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rollyard.records.run_types import ServerCode

_DIGITS = 12
_LARGE = 64 << 20
_GIT_TIMEOUT_S = 10.0
_OTHER_FOLDERS = frozenset(
    {"__pycache__", "build", "configs", "dist", "logs", "mlruns", "node_modules", "results", "tests", "wandb"}
)
_OTHER_ENDINGS = (
    *(".jsonl", "_manifest.json", "_status.json"),  # rows, and what collections write next to them
    *(".pyc", ".log", ".bak", ".orig", ".tmp", "~"),
)
_OTHER_NAMES = ("README", "LICENSE", "CHANGELOG", "conftest.py", "test_")
"""How the names of documentation and tests begin."""


def server_code(folder: Path) -> ServerCode:
    """Return the code in a server's folder. Call this in the server's process, right after loading it."""
    folder = folder.resolve()
    root = folder.parent.parent  # names begin with the family, wherever the folder is
    files = {str(path.relative_to(root)): _file_digest(path) for path in _code_files(folder)}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:_DIGITS]
    return ServerCode(digest=digest, files=files, folder=str(folder.relative_to(root)), revision=_revision(folder))


def _code_files(folder: Path) -> Iterator[Path]:
    """Yield every file except dot files, caches, environments, tests, documentation, rows and results."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _holds_code(Path(place, name)))
        for name in sorted(names):
            if not name.startswith((".", *_OTHER_NAMES)) and not name.endswith(_OTHER_ENDINGS):
                yield Path(place, name)


def _holds_code(folder: Path) -> bool:
    is_other = folder.name in _OTHER_FOLDERS or folder.name.startswith(".") or folder.suffix == ".egg-info"
    return not is_other and not (folder / "pyvenv.cfg").exists()


def _file_digest(path: Path) -> str:
    """Return a digest of a file's contents, or of the size and both ends of a very large file."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = hashlib.sha256(file.read(_LARGE))
            if size > _LARGE:
                file.seek(max(_LARGE, size - _LARGE))
                found.update(file.read(_LARGE) + str(size).encode())
    except OSError as error:
        return f"unreadable ({error.strerror})"
    return found.hexdigest()[:_DIGITS]


def _revision(folder: Path) -> str:
    """Return the commit that is checked out in the folder; empty if it is in no git repository."""
    command = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_GIT_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
