"""Decides whether a checkpoint folder is complete, and what the checkpoint is called in S3."""

from __future__ import annotations

import re
from pathlib import Path

from rollyard.launchers.evaluation.checkpoints.checkpoint_files import find_missing_part, step_of, unfinished

MARKERS = ("COMPLETE.json", "_SUCCESS", "_COMPLETE", ".complete", "DONE")
"""Files that training code writes last."""
_DCP_INDEX = ".metadata"
"""torch.distributed.checkpoint writes this file when every process has written its shard."""
_NAMED = re.compile(r".+_(?:step\d+|final)")

State = tuple[tuple[str, int, int], ...]
"""Name, size and modification time of every file."""


def files_of(folder: Path) -> State:
    """Return the state of a folder's files, sorted by name. Raises OSError if it disappears."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            status = path.stat()
            found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return tuple(found)


def has_marker(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKERS)


def seems_complete(folder: Path) -> bool:
    """Return whether the weights are complete. Other files may follow; the caller waits until none changes."""
    return (folder / _DCP_INDEX).is_file() or not find_missing_part(folder)


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint folders, oldest step first; links such as `latest` and temporary names are left out."""
    try:
        found = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []
    found = [path for path in found if not unfinished(path.name)]
    return sorted(found, key=_order)


def _order(path: Path) -> tuple[bool, int, str]:
    """By step; a name without a step, such as `final`, is the last one."""
    step = step_of(path.name)
    return step is None, step or 0, path.name


def name_in_s3(folder: str, run: str) -> str:
    """Return `<run>_step<N>` or `<run>_final`, unless the folder already has a name of this form."""
    if _NAMED.fullmatch(folder):
        return folder
    if folder == "final":
        return f"{run}_final"
    step = step_of(folder)
    return folder if step is None else f"{run}_step{step}"


def upload_order(names: list[str]) -> list[str]:
    """Sort files so that no reader takes an unfinished upload for a checkpoint: `config.json` comes last.

    Readers that do not know our marker require this file.
    """
    return sorted(names, key=lambda name: (name == "config.json", name))
