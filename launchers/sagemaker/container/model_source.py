"""ModelSource: finds the model that a config names, locally, in S3 or on the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from rollyard.launchers.sagemaker.container.s3_cache import S3Cache
from rollyard.records.errors import OperatorError
from rollyard.records.io import s3

SOURCES = ("local", "s3", "hub")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


class ModelSource:
    """Resolves model paths, in the order that the config states."""

    def __init__(self, code: Path, models: str | None, cache: S3Cache, print_line: Callable[[str], None]) -> None:
        """`models`: s3://bucket/prefix/models, or None without S3. `code`: relative paths start there."""
        self._code = code
        self._models = models
        self._cache = cache
        self._print = print_line

    def resolve(self, path: str, source: str | Sequence[str]) -> str:
        """Return a local folder, or the name of a model on the hub.

        `source`: `auto` (local, then S3, then the hub), one of `local`, `s3`, `hub`, or several of them in order.
        Raises OperatorError if none of them has the model, AwsError if S3 cannot be read.
        """
        tried = []
        for name in source_order(source):
            found, why = {"local": self._local, "s3": self._s3, "hub": self._hub}[name](path)
            if found:
                self._print(f"model {path}: {'Hugging Face Hub' if name == 'hub' else found}")
                return found
            tried.append(why)
        raise OperatorError(f"model {path!r} was not found: {'; '.join(tried)}")

    def _local(self, path: str) -> tuple[str | None, str]:
        folder = self._code / path
        if path.startswith(s3.SCHEME):
            return None, "it is not a local path"
        return (str(folder), "") if folder.is_dir() else (None, f"there is no folder {folder}")

    def _s3(self, path: str) -> tuple[str | None, str]:
        if path.startswith(s3.SCHEME):
            address = path
        elif self._models is None:
            return None, "this job has no S3 prefix for models"
        else:
            address = f"{self._models}/{PurePosixPath(path).name}"
        copy = self._cache.get(address)
        if copy is None:
            return None, f"{address}/ contains no objects"
        return (str(copy), "") if copy.is_dir() else (None, f"{address} is one object, not a folder")

    def _hub(self, path: str) -> tuple[str | None, str]:
        named = _HUB_NAME.fullmatch(path)
        return (path, "") if named else (None, f"{path!r} is not the name of a model on the Hugging Face Hub")


def source_order(source: str | Sequence[str]) -> Sequence[str]:
    """Return where to search, in order. Raises OperatorError if the config names anything else."""
    order = SOURCES if source == "auto" else [source] if isinstance(source, str) else list(source)
    unknown = [name for name in order if name not in SOURCES]
    if unknown or not order:
        raise OperatorError(f"model.source is {source!r}; expected auto, or local, s3, hub, or a list of these")
    return order
