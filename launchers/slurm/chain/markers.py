"""Markers in a job's folder: the work is done, or its chain was cancelled. Each is one file, replaced atomically."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.types import Record

DONE = "done.json"
CANCELLED = "cancelled.json"


class Marker(Record):
    """The content of a marker."""

    chain: str
    """The chain that it concerns; a marker of an earlier chain in the same folder does not end a new one."""
    job_id: str
    time: float
    """Unix time."""


def write_marker(path: Path, marker: Marker) -> None:
    """Write a marker that survives a power failure."""
    replace(path, marker.model_dump_json().encode() + b"\n")


def read_marker(path: Path) -> Marker | None:
    """Return a marker, or None if it does not exist. Raises RunError if it is not a marker."""
    try:
        return Marker.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise RunError(f"{path} is not a marker of a job: delete it, or choose another folder") from error
