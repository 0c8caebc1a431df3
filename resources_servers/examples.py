"""Reads an environment's example rows for `GET /examples`."""

from __future__ import annotations

import inspect
from pathlib import Path

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json


def folder_of(environment: type) -> Path | None:
    """Return the folder of the module that defines the environment; None if the module has no file."""
    try:
        return Path(inspect.getfile(environment)).parent
    except (TypeError, OSError):
        return None


def example_rows(folder: Path | None) -> list[Json]:
    """Return the rows of `data/example.jsonl` in the environment's folder. Raises Failure (404) if there are none."""
    file = None if folder is None else folder / "data" / "example.jsonl"
    if file is None or not file.is_file():
        detail = f"no example rows: {file or 'the module of the environment is not a file'}"
        raise Failure(FailureKind.BAD_REQUEST, detail, status=404)
    # Imported late: it supports every dataset format, so its import takes 0.2 s, which would delay the server's start.
    from rollyard.resources_servers.dataset_sources import read_rows

    return list(read_rows(file))
