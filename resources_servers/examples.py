"""`GET /examples`: an environment's example rows, ready to be played."""

from __future__ import annotations

import inspect
from pathlib import Path

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.types import Json


def folder_of(environment: type) -> Path | None:
    """The folder of the module that defines the environment; None where that is not a file."""
    try:
        return Path(inspect.getfile(environment)).parent
    except (TypeError, OSError):
        return None


def example_rows(folder: Path | None) -> list[Json]:
    """The rows of `data/example.jsonl` in an environment's folder. Raises Failure, status 404, where there are none."""
    file = None if folder is None else folder / "data" / "example.jsonl"
    if file is None or not file.is_file():
        detail = f"no example rows: {file or 'the module of the environment is not a file'}"
        raise Failure(FailureKind.BAD_REQUEST, detail, status=404)
    # It reads every kind of data set: 0.2 s of imports, which the start of a server need not wait for.
    from rollyard.resources_servers.dataset_sources import read_rows

    return list(read_rows(file))
