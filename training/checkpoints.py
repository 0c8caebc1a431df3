"""Checkpoints: folders from which training resumes, complete or absent."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from rollyard.records.errors import RunError
from rollyard.records.jsonl import replace
from rollyard.records.locked_files import sync_folder, sync_tree, unused, write_synced
from rollyard.records.types import Json
from rollyard.training.run_folder import version_of_step

MANIFEST = "checkpoint.json"
"""Written last: step, position in the data, and length and SHA-256 of every file."""
LATEST = "latest.json"
_FORMAT = 1
_NAME = re.compile(r"step_(\d{6,})")
_PARTIAL = re.compile(r"\.step_\d{6,}\.partial")


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    folder: Path
    step: int
    """Number of updates before it."""
    version: str
    """Version of the weights under which the engines had them."""
    position: Mapping[str, int] = field(default_factory=dict)
    """Position in the data of the next batch."""


@dataclass(frozen=True)
class Checkpoints:
    root: Path
    keep: int
    """How many stay on disk."""
    print_line: Callable[[str], None]

    def newest(self) -> TrainingCheckpoint | None:
        """Return the newest complete checkpoint; None if there is none. Damaged ones that are newer get another name,
        and a line is printed for each.
        """
        for step, folder in reversed(self._found()):
            try:
                return _read(folder, step)
            except _DamagedError as error:
                aside = unused(folder.with_name(f"{folder.name}.incomplete"))
                folder.rename(aside)
                self.print_line(f"{folder} is damaged ({error}): not used, renamed to {aside.name}")
        return None

    def begin(self, step: int) -> Path:
        """Create the folder into which the files of a checkpoint are written, and return it."""
        partial = self.partial(step)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        except OSError as error:
            raise RunError(f"cannot write {partial}: {error.strerror}") from error
        return partial

    def partial(self, step: int) -> Path:
        """Return the path that `begin` returns."""
        return self.root / f".{version_of_step(step)}.partial"

    def commit(self, step: int, version: str, position: Mapping[str, int]) -> TrainingCheckpoint:
        """Give the folder its final name once all files are on disk, and remove old checkpoints."""
        partial, folder = self.partial(step), self.root / version_of_step(step)
        try:
            manifest = {
                "format": _FORMAT,
                "step": step,
                "version": version,
                "position": dict(position),
                "files": {
                    str(path.relative_to(partial)): _digest(path)
                    for path in sorted(partial.rglob("*"))
                    if path.is_file()
                },
            }
            sync_tree(partial)
            write_synced(partial / MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n")
            partial.rename(folder)
            sync_folder(self.root)
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror}") from error
        replace(self.root / LATEST, orjson.dumps({"last_checkpoint": folder.name, "step": step}) + b"\n")
        for _, old in self._found()[: -self.keep]:
            # A folder that is being removed must not look like a checkpoint, even if the removal is interrupted.
            removed = old.with_name(f".{old.name}.partial")
            shutil.rmtree(removed, ignore_errors=True)
            old.rename(removed)
        for entry in self.root.iterdir():
            if _PARTIAL.match(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
        return TrainingCheckpoint(folder, step, version, position)

    def _found(self) -> list[tuple[int, Path]]:
        if not self.root.is_dir():
            return []
        named = [(_NAME.fullmatch(entry.name), entry) for entry in self.root.iterdir() if entry.is_dir()]
        return sorted((int(match[1]), entry) for match, entry in named if match)


class _DamagedError(Exception):
    pass


def _read(folder: Path, step: int) -> TrainingCheckpoint:
    """Return a checkpoint after reading all of its files. Raises _DamagedError."""
    try:
        manifest: Json = orjson.loads((folder / MANIFEST).read_bytes())
        if manifest["format"] != _FORMAT:
            raise RunError(f"{folder} has format {manifest['format']}; this version of Rollyard reads {_FORMAT}")
        for name, expected in manifest["files"].items():
            if not (folder / name).is_file():
                raise _DamagedError(f"{name} is missing")
            if _digest(folder / name) != expected:
                raise _DamagedError(f"{name} is not what was written")
        if manifest["step"] != step:
            raise _DamagedError(f"it is that of step {manifest['step']}")
        return TrainingCheckpoint(folder, step, manifest["version"], manifest["position"])
    except FileNotFoundError:
        raise _DamagedError(f"{MANIFEST} is missing") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _DamagedError(f"{MANIFEST} is invalid: {error}") from error
    except OSError as error:
        raise _DamagedError(f"it cannot be read: {error.strerror}") from error


def _digest(path: Path) -> Json:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
