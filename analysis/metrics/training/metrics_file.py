"""MetricsFile: the curves in the metrics.jsonl of a training run, which may still be growing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rollyard.records.io.json_values import is_number
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.io.lines import Lines
from rollyard.records.types import Json

_TAIL = 256
"""Bytes before the end of what was read, by which a rewritten file is recognised."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of a metric, in the order of their steps."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


class MetricsFile:
    """Reads complete lines as they appear. Where lines share a step and a name, the last one counts: a run that resumed
    from a checkpoint repeats steps. A file that was rewritten is read again; lines that are no metrics are skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.revision = 0
        """Changes when something was read."""
        self.updated: float | None = None
        """Unix time of the last line."""
        self._values: dict[str, dict[int, float]] = {}
        self._steps: set[int] = set()
        self._end = 0
        self._tail = b""

    def advance(self) -> bool:
        """Read what is new. Return whether there was anything. A file that is missing or unreadable counts as empty."""
        try:
            with self.path.open("rb") as file:
                rewritten = os.pread(file.fileno(), len(self._tail), self._end - len(self._tail)) != self._tail
                if rewritten:
                    self._forget()
                lines = Lines(file, self._end, whole=True)
                for line in iter_jsonl(lines, skip):
                    self._add(line.value)
                read = lines.end > self._end
                if read:
                    self._end = lines.end
                    self._tail = os.pread(file.fileno(), min(_TAIL, self._end), max(self._end - _TAIL, 0))
        except OSError:
            rewritten, read = self._end > 0, False
            self._forget()
        self.revision += rewritten or read
        return rewritten or read

    @property
    def steps(self) -> list[int]:
        """All steps with a value, in ascending order."""
        return sorted(self._steps)

    @property
    def names(self) -> list[str]:
        """The names of all metrics, in the order in which they first appear."""
        return list(self._values)

    def curve(self, name: str) -> Curve | None:
        """Return the curve of a metric; None if it has no value."""
        values = sorted(self._values.get(name, {}).items())
        return Curve(name, *map(tuple, zip(*values, strict=True))) if values else None

    def curves(self) -> dict[str, Curve]:
        """Return all curves by name, in the order of `names`."""
        return {name: curve for name in self._values if (curve := self.curve(name)) is not None}

    def at(self, step: int) -> dict[str, float]:
        """Return the metrics of a step by name."""
        return {name: values[step] for name, values in self._values.items() if step in values}

    def _add(self, line: Json) -> None:
        step = line.get("step")
        if type(step) is not int or step < 0:
            return
        if is_number(time := line.get("time")):
            self.updated = time
        for name, value in line.items():
            if "/" in name and is_number(value):
                self._values.setdefault(name, {})[step] = float(value)
                self._steps.add(step)

    def _forget(self) -> None:
        self._values, self._steps, self._end, self._tail, self.updated = {}, set(), 0, b"", None
