"""Lists the files of a project that belong to a job: those that git does not ignore."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rollyard.records.errors import OperatorError, RunError

_GENERATED = (".git", "__pycache__", "node_modules", "build", "dist", "results", "wandb", "site")
_GENERATED_CACHES = (
    ".venv",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".hypothesis",
    ".rollyard",
    ".ipynb_checkpoints",
)
"""Folders that are left out if the project is not in a git repository."""
GIT_TIMEOUT_S = 120


def project_files(project: Path) -> list[str]:
    """Return the paths of all files and links, relative to the project, sorted.

    In a git repository these are the tracked and the untracked files that are not ignored, otherwise all files except
    environments, caches and results. Raises OperatorError or RunError if they cannot be listed.
    """
    in_git = any((folder / ".git").exists() for folder in (project, *project.parents))
    found = _listed_by_git(project, project) if in_git else _walked(project)
    return sorted(set(found))


def _listed_by_git(project: Path, folder: Path) -> Iterator[str]:
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=GIT_TIMEOUT_S)
    except FileNotFoundError as error:
        raise OperatorError(
            f"{folder} is in a git repository, but git is not installed; it knows ignored files"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise RunError(f"git did not list the files of {folder} within {GIT_TIMEOUT_S} s") from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise RunError(f"git cannot list the files of {folder}: {reason}")
    for name in os.fsdecode(done.stdout).split("\0"):
        path = folder / name
        if not name or not os.path.lexists(path):  # deleted, but still tracked
            continue
        if path.is_dir() and not path.is_symlink():  # a submodule or another repository
            if (path / ".git").exists():
                yield from _listed_by_git(project, path)
        else:
            yield str(path.relative_to(project))


def _walked(project: Path) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        raise RunError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, names, files in os.walk(project, onerror=unreadable):
        at = Path(folder)
        links = [name for name in names if (at / name).is_symlink()]
        names[:] = [name for name in names if not _is_generated(name) and name not in links]
        yield from (str((at / name).relative_to(project)) for name in (*files, *links))


def _is_generated(name: str) -> bool:
    return name in _GENERATED or name.startswith(_GENERATED_CACHES) or name.endswith(".egg-info")
