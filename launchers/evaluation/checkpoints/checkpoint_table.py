"""CheckpointTable: the evaluations of a training run's checkpoints, as one table over the steps."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from rollyard.launchers.evaluation.checkpoints.checkpoint_files import step_of
from rollyard.launchers.evaluation.headline import Headline, formatted
from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.types import Record

_LONGEST_PAUSE_S = 3600.0


class EvaluatedCheckpoint(Record):
    """The state of one checkpoint's evaluation."""

    checkpoint: str
    step: int | None
    headline: Headline | None
    """None until the evaluation is complete."""
    tries: int = 0
    error: str = ""
    """Why the last try failed."""
    failed_at: float = 0.0
    """Unix time of the last failure."""

    def may_run(self, now: float, pause_s: float) -> bool:
        """Return whether to evaluate it now. After each failure the pause doubles, up to an hour."""
        if self.headline is not None:
            return False
        pause = min(pause_s * 2 ** (self.tries - 1), _LONGEST_PAUSE_S) if self.tries else 0.0
        return now >= self.failed_at + pause


_ROWS = TypeAdapter(list[EvaluatedCheckpoint])


class CheckpointTable:
    """The table in `folder`: checkpoints.json, which is replaced atomically, and checkpoints.md and .csv made from it.

    Only a complete evaluation is recorded as done. A failure is kept with its reason and tried again.
    """

    def __init__(self, folder: Path) -> None:
        """Read the table. Raises RunError if checkpoints.json is not readable."""
        self.path = folder / "checkpoints.json"
        self._rows: dict[str, EvaluatedCheckpoint] = {}
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self._rows = {row.checkpoint: row for row in _ROWS.validate_json(self.path.read_bytes())}
        except FileNotFoundError:
            return
        except (OSError, ValidationError) as error:
            raise RunError(f"{self.path} cannot be read ({error}); rename or delete it to start over") from error

    @property
    def rows(self) -> list[EvaluatedCheckpoint]:
        """All checkpoints by step, then by name; those without a step come first."""
        return sorted(self._rows.values(), key=lambda row: (-1 if row.step is None else row.step, row.checkpoint))

    def is_pending(self, checkpoint: str, pause_s: float) -> bool:
        row = self._rows.get(checkpoint)
        return row is None or row.may_run(time.time(), pause_s)

    def record(self, checkpoint: str, headline: Headline) -> None:
        """Store the result of a complete evaluation."""
        tries = self._tries(checkpoint) + 1
        self._keep(EvaluatedCheckpoint(checkpoint=checkpoint, step=step_of(checkpoint), headline=headline, tries=tries))

    def fail(self, checkpoint: str, error: str) -> None:
        """Store why an evaluation failed."""
        tries = self._tries(checkpoint) + 1
        row = EvaluatedCheckpoint(
            checkpoint=checkpoint,
            step=step_of(checkpoint),
            headline=None,
            tries=tries,
            error=error,
            failed_at=time.time(),
        )
        self._keep(row)

    def markdown(self) -> str:
        header, *lines = self._cells()
        return "\n".join(_line(cells) for cells in (header, ["---"] * len(header), *lines)) + "\n"

    def _tries(self, checkpoint: str) -> int:
        row = self._rows.get(checkpoint)
        return row.tries if row else 0

    def _keep(self, row: EvaluatedCheckpoint) -> None:
        self._rows[row.checkpoint] = row
        replace(self.path, _ROWS.dump_json(self.rows, indent=2))
        replace(self.path.with_suffix(".md"), self.markdown().encode())
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._numbers())
        replace(self.path.with_suffix(".csv"), text.getvalue().encode())

    def _metrics(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows if row.headline for name in row.headline.metrics))

    def _cells(self) -> list[list[str]]:
        metrics = self._metrics()
        cells = [["step", "checkpoint", "rollouts", *metrics]]
        for row in self.rows:
            found = [formatted(row.headline.metrics.get(name) if row.headline else None) for name in metrics]
            state = row.headline.coverage if row.headline else f"failed {row.tries} times: {row.error}"
            cells.append(["-" if row.step is None else str(row.step), row.checkpoint, state, *found])
        return cells

    def _numbers(self) -> list[list[object]]:
        metrics = self._metrics()
        header: list[object] = ["step", "checkpoint", "measured", "expected"]
        lines = [header + [column for name in metrics for column in (name, f"{name}_low", f"{name}_high")]]
        for row in self.rows:
            if row.headline is not None:
                line: list[object] = [row.step, row.checkpoint, row.headline.measured, row.headline.expected]
                for name in metrics:
                    found = row.headline.metrics.get(name)
                    line += [found.mean, found.low, found.high] if found else [None, None, None]
                lines.append(line)
        return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
