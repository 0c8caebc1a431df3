"""Records how many rollouts were logged to each tracker's run, in `X_tracked.json` next to `X.jsonl`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import orjson
from pydantic import Field, ValidationError

from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.types import Record


class Tracked(Record):
    """The contents of the progress file."""

    rollouts: dict[str, int] = Field(default_factory=dict)
    """Maps tracker and run id, such as `wandb/0123456789abcdef`, to the number of rollouts logged."""


class ProgressFile:
    """Stores the progress of trackers that cannot be queried, such as Weights & Biases offline."""

    def __init__(self, output: Path, tracker: str, run_id: str) -> None:
        self.path = RolloutPaths(output).sidecar("tracked.json")
        self._key = f"{tracker}/{run_id}"

    @property
    def logged(self) -> int:
        """Number of rollouts logged by earlier commands; 0 if unknown."""
        return self._read().rollouts.get(self._key, 0)

    def write(self, rollouts: int) -> None:
        """Store the progress. Does nothing if the folder is not writable."""
        known = self._read().rollouts
        with contextlib.suppress(RunError):
            replace(self.path, orjson.dumps({"rollouts": {**known, self._key: rollouts}}) + b"\n", synced=False)

    def _read(self) -> Tracked:
        try:
            return Tracked.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return Tracked()
