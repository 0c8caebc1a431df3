"""Tracks runs in Weights & Biases, which is configured by its own settings (`wandb login`, WANDB_MODE=offline, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollyard.analysis.tracking.tracker import ROLLOUTS, Cell
from rollyard.records.errors import RunError
from rollyard.records.io.optional import load
from rollyard.records.types import Json


class WandbTracker:
    """A run in a Weights & Biases project. Implements `tracker.Tracker`."""

    def __init__(self, project: str, name: str, config: Json, run_id: str) -> None:
        self._wandb = load("wandb", "wandb", "--to wandb")
        try:
            self._run = self._wandb.init(project=project, name=name, config=config, id=run_id, resume="allow")
        except self._wandb.Error as error:
            raise RunError(f"Weights & Biases could not start a run: {error}") from error

    @property
    def logged(self) -> int:
        """Number of rollouts already logged; 0 in offline mode, where the summary of an earlier command is not
        available.
        """
        last = self._run.summary.get(ROLLOUTS)
        return int(last) if isinstance(last, int | float) else 0

    @property
    def place(self) -> str:
        return str(self._run.url or self._run.dir)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        rollout_table = self._wandb.Table(
            columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True
        )
        # A separate name, because a later command resumes from the number stored as ROLLOUTS.
        self._run.log({"rollout_table": rollout_table}, step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
