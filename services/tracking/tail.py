"""Following: a rollout file's rows in the order in which they were written, while it may still grow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import orjson
from pydantic import ValidationError

from rollyard.services.errors import OperatorError
from rollyard.services.rollouts.store import StorePaths
from rollyard.services.types import CollectionStatus, Json

LOOK_S = 1.0
SILENT_S = 10.0
"""A status that says `running` and is older than that is of a collection that was ended from outside."""


def status_of(output: Path) -> CollectionStatus | None:
    """How the collection that writes `output` goes; None where nothing says so."""
    try:
        return CollectionStatus.model_validate_json(StorePaths(output).status.read_bytes())
    except (OSError, ValidationError):
        return None


def grows(output: Path) -> bool:
    """Whether a collection is writing to it now."""
    status = status_of(output)
    return status is not None and status.state == "running" and time.time() - status.updated < SILENT_S


def rows(output: Path, *, follow: bool) -> Iterator[Json | None]:
    """Every whole row; with `follow` until its collection ends, and None whenever nothing is new for a second.

    What is no JSON object is passed over: other commands judge the file. Raises OperatorError when there is none.
    """
    try:
        file = output.open("rb")
    except OSError as error:
        raise OperatorError(f"rollout file {str(output)!r} cannot be read: {error.strerror}") from error
    with file:
        rest = b""
        while True:
            more = follow and grows(output)  # asked before reading: what is written until it ends is read
            while piece := file.readline():
                rest += piece
                if rest.endswith(b"\n"):
                    if (row := _row(rest)) is not None:
                        yield row
                    rest = b""
            if not more:
                return
            yield None
            time.sleep(LOOK_S)


def _row(line: bytes) -> Json | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None
