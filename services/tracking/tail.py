"""Following: a rollout file's rows in the order in which they were written, while it may still grow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from rollyard.services.errors import OperatorError
from rollyard.services.io.jsonl import iter_jsonl, skip
from rollyard.services.io.lines import Lines
from rollyard.services.rollouts.status import is_running, read_status
from rollyard.services.types import Json

LOOK_S = 1.0
SILENT_S = 10.0
"""A status that says `running` and is older than that is of a collection that was ended from outside."""


def rows(output: Path, *, follow: bool) -> Iterator[Json | None]:
    """Every whole row; with `follow` until its collection ends, and None whenever nothing is new for a second.

    What is no JSON object is passed over: other commands judge the file. Raises OperatorError when there is none.
    """
    try:
        file = output.open("rb")
    except OSError as error:
        raise OperatorError(f"rollout file {str(output)!r} cannot be read: {error.strerror}") from error
    with file:
        end = 0
        while True:
            more = follow and is_running(
                read_status(output), SILENT_S
            )  # asked before reading: what is written until it ends is read
            lines = Lines(file, end, whole=True)
            # Rows go on to a tracker: what orjson refuses could not be written again.
            for line in iter_jsonl(lines, skip, parse=orjson.loads):
                yield line.value
            end = max(end, lines.end)
            if not more:
                return
            yield None
            time.sleep(LOOK_S)
