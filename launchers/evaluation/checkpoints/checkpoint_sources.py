"""Finds the checkpoints of a training run in a local folder or in S3."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rollyard.launchers.evaluation.checkpoints.checkpoint_files import (
    WEIGHTS,
    find_absent_file,
    find_missing_part,
    step_of,
    unfinished,
)
from rollyard.records.errors import RunError
from rollyard.records.io import s3


class Source(Protocol):
    """A location in which a training run saves checkpoints."""

    @property
    def place(self) -> str:
        """A readable description of the location."""
        ...

    def names(self) -> list[str]:
        """Return the names of all checkpoints, complete or not, by step. Raises RunError if they cannot be listed."""
        ...

    def address(self, name: str) -> str:
        """Return the path or S3 URL of a checkpoint."""
        ...

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """Return the local folder of the checkpoint, or None and what is missing if the checkpoint is incomplete.

        Raises OSError or RunError if it cannot be read.
        """
        ...

    def done(self, name: str) -> None:
        """Release a checkpoint that is no longer needed."""
        ...


@dataclass(frozen=True)
class LocalSource:
    """Checkpoints in the subfolders of a folder."""

    root: Path
    pattern: str = "*"
    marker: str | None = None
    """File that the training program writes into a checkpoint last; None: the weights' headers decide."""

    @property
    def place(self) -> str:
        return f"{self.root / self.pattern}" + ("" if self.root.is_dir() else f" ({self.root} does not exist)")

    def names(self) -> list[str]:
        """Symbolic links to a sibling, such as `latest`, are skipped, because they are not separate checkpoints."""
        root = self.root.resolve()
        try:
            found = [path for path in root.glob(self.pattern) if path.is_dir() and not unfinished(path.name)]
        except OSError as error:
            raise RunError(f"{self.root} cannot be read: {error.strerror}") from error
        return by_step(path.name for path in found if not (path.is_symlink() and path.resolve().parent == root))

    def address(self, name: str) -> str:
        return str(self.root.resolve() / name)

    def fetch(self, name: str) -> tuple[Path | None, str]:
        folder = self.root / name
        missing = find_missing_part(folder, self.marker)
        return (None, missing) if missing else (folder, "")

    def done(self, name: str) -> None:
        """Do nothing, because local checkpoints are kept."""


class S3Source:
    """Checkpoints under a prefix in S3, copied to `folder` one at a time."""

    def __init__(self, address: str, folder: Path, pattern: str = "*", marker: str | None = None) -> None:
        """Raises OperatorError if boto3 is not installed or `address` is not a URL such as s3://bucket/prefix."""
        self._bucket, prefix = s3.split(address)
        self._prefix = prefix.rstrip("/") + "/"
        self._folder = folder
        self._pattern = pattern
        self._marker = marker
        self._client = s3.client(address)

    @property
    def place(self) -> str:
        return self.address(self._pattern)

    def names(self) -> list[str]:
        with self._convert_errors():
            found = [
                common["Prefix"].removeprefix(self._prefix).rstrip("/")
                for page in self._pages(self._prefix, Delimiter="/")
                for common in page.get("CommonPrefixes", ())
            ]
        return by_step(name for name in found if Path(name).match(self._pattern) and not unfinished(name))

    def address(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """The weights are copied last, after checking that all files exist. An interrupted copy is discarded."""
        complete, partial = self._folder / name, self._folder / f"{name}.partial"
        if complete.is_dir():
            return complete, ""
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with self._convert_errors():
                missing = self._copied(f"{self._prefix}{name}/", partial)
            if not missing:
                partial.rename(complete)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return (None, missing) if missing else (complete, "")

    def done(self, name: str) -> None:
        """Delete the local copy."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _copied(self, prefix: str, target: Path) -> str:
        """Copy a checkpoint; return why it is incomplete, or '' if it is complete."""
        files = {key: target / key.removeprefix(prefix) for key in self._keys(prefix)}
        weights = {key: file for key, file in files.items() if file.name.endswith(WEIGHTS)}
        for key, file in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            if key in weights:
                file.touch()
            else:
                self._client.download_file(self._bucket, key, str(file))
        if absent := find_absent_file(target, self._marker):
            return absent
        for key, file in weights.items():
            self._client.download_file(self._bucket, key, str(file))
        return find_missing_part(target, self._marker)

    def _keys(self, prefix: str) -> list[str]:
        pages = self._pages(prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ()) if not item["Key"].endswith("/")]

    def _pages(self, prefix: str, **more: str) -> Any:
        return self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **more)

    @contextlib.contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Convert botocore's errors, whose classes are created at run time, to RunError."""
        try:
            yield
        except Exception as error:
            raise RunError(f"s3://{self._bucket}/{self._prefix} cannot be read: {error}") from error


def by_step(names: Iterable[str]) -> list[str]:
    """Sort by step, then by name; names without a step come first."""
    return sorted(names, key=lambda name: (-1 if (step := step_of(name)) is None else step, name))
