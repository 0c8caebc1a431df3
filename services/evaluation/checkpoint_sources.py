"""Sources: where a training's checkpoints appear, here or in S3."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rollyard.services.errors import RunError
from rollyard.services.evaluation.checkpoints import WEIGHTS, find_absent_file, find_missing_part, step_of, unfinished
from rollyard.services.io import s3


class Source(Protocol):
    """Where checkpoints appear."""

    @property
    def place(self) -> str:
        """Where, in words."""
        ...

    def names(self) -> list[str]:
        """Those that are there, whole or not, by step. Raises RunError when it cannot be looked."""
        ...

    def address(self, name: str) -> str:
        """Where one of them is."""
        ...

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """The folder of a whole one, or None and what is missing. Raises OSError, RunError."""
        ...

    def done(self, name: str) -> None:
        """It is not needed any more."""
        ...


@dataclass(frozen=True)
class LocalSource:
    """Folders below a folder."""

    root: Path
    pattern: str = "*"

    @property
    def place(self) -> str:
        """See `Source`."""
        return f"{self.root / self.pattern}" + ("" if self.root.is_dir() else f" ({self.root} is not there)")

    def names(self) -> list[str]:
        """See `Source`. A link beside what it names (`latest`) is no checkpoint of its own."""
        root = self.root.resolve()
        try:
            found = [path for path in root.glob(self.pattern) if path.is_dir() and not unfinished(path.name)]
        except OSError as error:
            raise RunError(f"{self.root} cannot be read: {error.strerror}") from error
        return by_step(path.name for path in found if not (path.is_symlink() and path.resolve().parent == root))

    def address(self, name: str) -> str:
        """See `Source`."""
        return str(self.root.resolve() / name)

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """See `Source`."""
        folder = self.root / name
        missing = find_missing_part(folder)
        return (None, missing) if missing else (folder, "")

    def done(self, name: str) -> None:
        """It stays where it is."""


class S3Source:
    """Prefixes below a prefix; copied to `folder` one at a time."""

    def __init__(self, address: str, folder: Path, pattern: str = "*") -> None:
        """Raises OperatorError when boto3 is not there, or the address names no folder."""
        self._bucket, prefix = s3.split(address)
        self._prefix = prefix.rstrip("/") + "/"
        self._folder = folder
        self._pattern = pattern
        self._client = s3.client(address)

    @property
    def place(self) -> str:
        """See `Source`."""
        return self.address(self._pattern)

    def names(self) -> list[str]:
        """See `Source`."""
        with self._told():
            found = [
                common["Prefix"].removeprefix(self._prefix).rstrip("/")
                for page in self._pages(self._prefix, Delimiter="/")
                for common in page.get("CommonPrefixes", ())
            ]
        return by_step(name for name in found if Path(name).match(self._pattern) and not unfinished(name))

    def address(self, name: str) -> str:
        """See `Source`."""
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """See `Source`. Weights come last, when all are there; a copy that was not finished is thrown away."""
        whole, partial = self._folder / name, self._folder / f"{name}.partial"
        if whole.is_dir():
            return whole, ""
        shutil.rmtree(partial, ignore_errors=True)
        try:
            with self._told():
                missing = self._copied(f"{self._prefix}{name}/", partial)
            if not missing:
                partial.rename(whole)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return (None, missing) if missing else (whole, "")

    def done(self, name: str) -> None:
        """The copy goes."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _copied(self, prefix: str, target: Path) -> str:
        """Copy a checkpoint. Why it is not whole; empty when it is."""
        files = {key: target / key.removeprefix(prefix) for key in self._keys(prefix)}
        weights = {key: file for key, file in files.items() if file.name.endswith(WEIGHTS)}
        for key, file in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            if key in weights:
                file.touch()
            else:
                self._client.download_file(self._bucket, key, str(file))
        if absent := find_absent_file(target):
            return absent
        for key, file in weights.items():
            self._client.download_file(self._bucket, key, str(file))
        return find_missing_part(target)

    def _keys(self, prefix: str) -> list[str]:
        pages = self._pages(prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ()) if not item["Key"].endswith("/")]

    def _pages(self, prefix: str, **more: str) -> Any:
        return self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **more)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Botocore's errors, whose classes are made at run time, as RunError."""
        try:
            yield
        except Exception as error:
            raise RunError(f"s3://{self._bucket}/{self._prefix} cannot be read: {error}") from error


def by_step(names: Iterable[str]) -> list[str]:
    """Sorted by step, then by name; those without a step first."""
    return sorted(names, key=lambda name: (-1 if (step := step_of(name)) is None else step, name))
