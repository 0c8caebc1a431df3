"""ProgressFile: `X_tracked.json` beside `X.jsonl`: up to which rollout the runs of trackers have their numbers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import orjson
from pydantic import Field, ValidationError

from rollyard.services.errors import RunError
from rollyard.services.io.jsonl import replace
from rollyard.services.rollouts.store import StorePaths
from rollyard.services.types import Record


class Tracked(Record):
    """What stands in the file."""

    rollouts: dict[str, int] = Field(default_factory=dict)
    """Tracker and id of the run, `wandb/0123456789abcdef` -> rollouts logged."""


class ProgressFile:
    """Remembers for trackers that cannot be asked, as Weights & Biases offline cannot."""

    def __init__(self, output: Path, tracker: str, run_id: str) -> None:
        self.path = StorePaths(output).sidecar("tracked.json")
        self._key = f"{tracker}/{run_id}"

    @property
    def logged(self) -> int:
        """Rollouts logged to the run by earlier commands; 0 where nothing says so."""
        return self._read().rollouts.get(self._key, 0)

    def write(self, rollouts: int) -> None:
        """Note how far it got. A folder that cannot be written keeps nothing."""
        known = self._read().rollouts
        with contextlib.suppress(RunError):
            replace(self.path, orjson.dumps({"rollouts": {**known, self._key: rollouts}}) + b"\n", synced=False)

    def _read(self) -> Tracked:
        try:
            return Tracked.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return Tracked()
