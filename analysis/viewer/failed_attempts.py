"""Indexes the growing file `X_failures.jsonl` and reads the failed attempts at a rollout."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.columns import CategoryColumn, Floats, Ints, Vocabulary
from rollyard.analysis.viewer.api_records import Attempt
from rollyard.analysis.viewer.growing_index import FileFingerprint
from rollyard.analysis.viewer.untrusted_values import row_at
from rollyard.records.json_values import mapping, number, text_of, whole_number
from rollyard.records.jsonl import Lines, iter_jsonl, skip
from rollyard.records.types import Json

_STEP = 16 << 20


@dataclass(frozen=True)
class Failed:
    """Failed attempts in chronological order."""

    task: Ints
    repeat: Ints
    offset: Ints
    terminal: NDArray[np.bool_]
    """Whether a failure of this kind is never retried by the same command."""
    abandoned_at: Floats
    """When the command gave up the rollout after this attempt; NaN if it did not, or if it is not recorded."""
    kind: CategoryColumn
    agent: CategoryColumn


class AttemptFile:
    """The index of a failures file. One thread calls `advance`; any thread may read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fingerprint: FileFingerprint | None = None
        self._reset()

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that have not been read yet."""
        return 0 if self._at_end else self._size - self._end

    def advance(self) -> bool:
        """Read up to 16 MB of new data; return whether attempts were added or removed."""
        try:
            stat = self.path.stat()
            if self._fingerprint is not None and self._fingerprint.unchanged(stat):
                return False
            changed = self._fingerprint is not None and not self._fingerprint.fits(self.path, stat)
            if changed:
                self._reset()
            before = self._end
            self._read()
            # A step that reads less than _STEP has reached the end of the file or an incomplete last line.
            self._size, self._at_end = stat.st_size, self._end < before + _STEP
            self._fingerprint = FileFingerprint.of(self.path, self._end, stat, complete=self._at_end)
        except OSError:
            changed = self._end > 0
            self._reset()
            return changed
        if changed or self._end > before:
            self.failed = self._collected_attempts()
            return True
        return False

    def of(self, task: int, repeat: int) -> list[Attempt]:
        """Return the failed attempts at a rollout, in order. Raises OSError if the file cannot be read."""
        failed = self.failed
        indexes = np.flatnonzero((failed.task == task) & (failed.repeat == repeat))
        return [attempt_of(self.row(int(failed.offset[index]))) for index in indexes.tolist()]

    def row(self, offset: int) -> Json:
        """Return the row at an offset of the file. Raises OSError if the file cannot be read."""
        return row_at(self.path, offset)

    def _reset(self) -> None:
        self._ints = array("q")
        self._terminal = array("b")
        self._abandoned_at = array("d")
        self._kinds, self._agents = Vocabulary(), Vocabulary()
        self._end = 0
        self._size = 0
        self._at_end = True
        self._fingerprint = None
        self.failed = self._collected_attempts()

    def _collected_attempts(self) -> Failed:
        task, repeat, offset = np.array(self._ints, np.int64).reshape(-1, 3).T.copy()
        terminal = np.array(self._terminal, bool)
        abandoned_at = np.array(self._abandoned_at, np.float64)
        return Failed(task, repeat, offset, terminal, abandoned_at, self._kinds.column(), self._agents.column())

    def _read(self) -> None:
        lines = Lines(self.path, self._end, self._end + _STEP, whole=True)
        for line in iter_jsonl(lines, skip):
            self._add(line.value, line.offset)
        self._end = max(self._end, lines.end)

    def _add(self, row: Json, offset: int) -> None:
        task, repeat = whole_number(row.get("_ng_task_index")), whole_number(row.get("_ng_rollout_index"))
        if task is None or repeat is None:
            return
        self._ints.extend((task, repeat, offset))
        self._terminal.append(row.get("terminal") is not False)
        self._abandoned_at.append(number(row.get("time"), 0.0) if row.get("abandoned") is True else math.nan)
        self._kinds.add(row.get("failure_kind"))
        self._agents.add(mapping(row.get("agent_ref")).get("name"))


def attempt_of(row: Json) -> Attempt:
    return Attempt(
        attempt=whole_number(row.get("_ng_attempt_index")) or 0,
        kind=text_of(row.get("failure_kind")) or "unknown",
        server=text_of(row.get("server")),
        detail=text_of(row.get("detail")),
        seconds=number(row.get("duration_s"), 0.0),
        when=number(row.get("time"), 0.0),
        has_conversation=bool(mapping(mapping(row.get("partial")).get("row"))),
    )
