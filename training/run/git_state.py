"""Records the state of a git repository, so that a run can be repeated with the code it had."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rollyard.records.types import Json

_TIMEOUT_S = 30.0
_PATCHES = {
    "git_status.txt": ("status", "--short", "--branch"),
    "git_diff.patch": ("diff",),
    "git_diff_cached.patch": ("diff", "--cached"),
    "git_untracked.txt": ("ls-files", "--others", "--exclude-standard"),
}
"""The files and the git commands whose output they contain."""


def git_record(project: Path) -> Json:
    """Return root, commit and branch of the repository that contains `project`; empty if there is none.

    A record must not stop a run, so values that git does not provide are left out.
    """
    found = {
        "root": _git(project, "rev-parse", "--show-toplevel"),
        "commit": _git(project, "rev-parse", "--verify", "--quiet", "HEAD"),
        "branch": _git(project, "branch", "--show-current"),
    }
    return {name: value.decode("utf-8", "replace").strip() for name, value in found.items() if value is not None}


def write_patches(project: Path, folder: Path) -> None:
    """Write status, differences and the names of untracked files into `folder`. Without a repository, write nothing."""
    root = _git(project, "rev-parse", "--show-toplevel")
    if root is None:
        return
    # From the root, so that the paths are complete and files outside `project` are included.
    top = Path(root.decode("utf-8", "surrogateescape").strip())
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in _PATCHES.items():
        if (output := _git(top, *arguments)) is not None:
            (folder / name).write_bytes(output)


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Return the output of a git command; None if it fails."""
    # Configured diff programs and colours would make patches that git cannot apply.
    command = ["git", "-C", str(folder), "--no-pager", "-c", "color.ui=false", "-c", "core.quotePath=false", *arguments]
    if arguments[0] == "diff":
        command.append("--no-ext-diff")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
