"""Reads a rollout file's rows in order, optionally while the file grows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from rollyard.records.errors import OperatorError
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.io.lines import Lines
from rollyard.records.rollouts.status_file import is_running, read_status
from rollyard.records.types import Json

POLL_S = 1.0
SILENT_S = 10.0
"""A `running` status that is older than this is left over from a collection that was killed."""


def rows(output: Path, *, follow: bool) -> Iterator[Json | None]:
    """Yield every complete row of the file.

    With `follow`, keep reading until the collection ends, and yield None before each pause of POLL_S. Lines that are
    not JSON objects are skipped, because other commands validate the file. Raises OperatorError if the file cannot be
    read.
    """
    try:
        file = output.open("rb")
    except OSError as error:
        raise OperatorError(f"rollout file {str(output)!r} cannot be read: {error.strerror}") from error
    with file:
        end = 0
        while True:
            # Checked before reading, so that rows written until the end are read.
            more = follow and is_running(read_status(output), SILENT_S)
            lines = Lines(file, end, whole=True)
            # Rows are sent to a tracker, so they must be serializable by orjson.
            for line in iter_jsonl(lines, skip, parse=orjson.loads):
                yield line.value
            end = max(end, lines.end)
            if not more:
                return
            yield None
            time.sleep(POLL_S)
