"""StepFiles: the rollouts of a step on disk, and a record of which tasks have been played."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import orjson
from pydantic import ValidationError

from rollyard.records.io.jsonl import replace
from rollyard.records.io.locked_files import unused
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.partial_records import PARTIAL_MEMBER
from rollyard.records.rollouts.rollout_file import Rollouts
from rollyard.records.rollouts.rollout_keys import Key, key_of
from rollyard.records.types import Json, Record

_RECORD = re.compile(r"step_(\d{6,})_tasks\.json")
_OUTPUT = re.compile(r"step_(\d{6,})\.jsonl")


class StepRecord(Record):
    """The contents of `step_000012_tasks.json`."""

    settings: Json
    """What determines the rollouts besides what the manifest contains. Only a run with the same uses them again."""
    start: dict[str, int]
    """Position in the data before the step."""
    rows: list[int]
    """The dataset row of each task."""
    played: int = 0
    """Number of tasks, from the first, whose rollouts have all ended."""
    complete: bool = False
    """Whether the step became a batch. Its failed rollouts are then not played again."""


def recorded_steps(folder: Path) -> list[int]:
    """Return the numbers of the steps that have a record in a folder, sorted."""
    return _numbers(folder, _RECORD)


def played_steps(folder: Path) -> list[int]:
    """Return the numbers of the steps that have rollouts in a folder, sorted."""
    return _numbers(folder, _OUTPUT)


def _numbers(folder: Path, name: re.Pattern[str]) -> list[int]:
    return sorted(int(found[1]) for path in folder.glob("step_*") if (found := name.fullmatch(path.name)))


class StepFiles:
    """The files of one step."""

    def __init__(self, output: Path) -> None:
        self.paths = RolloutPaths(output)
        self._record = self.paths.sidecar("tasks.json")

    def record(self) -> StepRecord | None:
        """Return the record, or None if there is none that can be read."""
        try:
            return StepRecord.model_validate_json(self._record.read_bytes())
        except (OSError, ValidationError):
            return None

    def write(self, record: StepRecord) -> None:
        """Replace the record. Raises RunError if it cannot be written."""
        self.paths.output.parent.mkdir(parents=True, exist_ok=True)
        replace(self._record, orjson.dumps(record.model_dump(), option=orjson.OPT_INDENT_2))

    def rows(self) -> dict[Key, Json]:
        """Return the measured rollouts. Raises RunError if a line is not a JSON object."""
        if not self.paths.output.is_file():
            return {}
        return {key_of(row): dict(row) for row in Rollouts(self.paths.output)}

    def failures(self) -> dict[Key, Json]:
        """Return the last failed attempt of each rollout. Raises RunError if a line is not a JSON object."""
        if not self.paths.failures.is_file():
            return {}
        # Nothing is trained on what had been said in a failed attempt, and it would take up memory.
        return {
            key_of(row): {name: value for name, value in row.items() if name != PARTIAL_MEMBER}
            for row in Rollouts(self.paths.failures)
        }

    def set_aside(self) -> list[Path]:
        """Rename all files, so that the step is played from the start. Return the new paths."""
        stamp, renamed = time.strftime("%Y%m%d-%H%M%S"), []
        # The record first: without it, a run that ends in between does not use the other files.
        for path in (self._record, *self.paths.sidecars(), self.paths.output):
            if os.path.lexists(path):
                aside = unused(path.with_name(f"{path.name}.{stamp}"))
                path.rename(aside)
                renamed.append(aside)
        return renamed

    @property
    def exist(self) -> bool:
        """Whether the step has rollouts or a record."""
        return self._record.exists() or self.paths.output.exists()
