"""Sources: where a training's checkpoints appear, here or in S3."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services import s3
from services.evaluation.checkpoints import step_of, what_is_missing


class Source(Protocol):
    """Where checkpoints appear."""

    def names(self) -> list[str]:
        """Those that are there, whole or not, by step."""
        ...

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """The folder of a whole one, or None and what is missing."""
        ...

    def done(self, name: str) -> None:
        """It is not needed any more."""
        ...


@dataclass(frozen=True)
class LocalSource:
    """Folders below a folder."""

    root: Path
    pattern: str = "*"

    def names(self) -> list[str]:
        """See `Source`."""
        if not self.root.is_dir():
            return []
        return by_step(path.name for path in self.root.glob(self.pattern) if path.is_dir())

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """See `Source`."""
        folder = self.root / name
        missing = what_is_missing(folder)
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

    def names(self) -> list[str]:
        """See `Source`."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"
        )
        found = [
            common["Prefix"].removeprefix(self._prefix).rstrip("/")
            for page in pages
            for common in page.get("CommonPrefixes", ())
        ]
        return by_step(name for name in found if Path(name).match(self._pattern))

    def fetch(self, name: str) -> tuple[Path | None, str]:
        """See `Source`. A copy that was not finished is thrown away, never taken for the whole."""
        whole, partial = self._folder / name, self._folder / f"{name}.partial"
        if not whole.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for key in self._keys(f"{self._prefix}{name}/"):
                file = partial / key.removeprefix(f"{self._prefix}{name}/")
                file.parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(self._bucket, key, str(file))
            if missing := what_is_missing(partial):
                shutil.rmtree(partial)
                return None, missing
            partial.rename(whole)
        return whole, ""

    def done(self, name: str) -> None:
        """The copy goes."""
        shutil.rmtree(self._folder / name, ignore_errors=True)

    def _keys(self, prefix: str) -> Iterator[str]:
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix):
            yield from (item["Key"] for item in page.get("Contents", ()) if not item["Key"].endswith("/"))


def by_step(names: Iterable[str]) -> list[str]:
    """Sorted by step, then by name; those without a step first."""
    return sorted(names, key=lambda name: (-1 if (step := step_of(name)) is None else step, name))
