"""Weights & Biases. Key, entity and mode come from its own settings (`wandb login`, WANDB_MODE=offline, ...)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollyard.services.errors import RunError
from rollyard.services.io.optional import load
from rollyard.services.tracking.tracker import ROLLOUTS, Cell
from rollyard.services.types import Json


class WandbTracker:
    """A run in a project. See `tracker.Tracker`."""

    def __init__(self, project: str, name: str, config: Json, run_id: str) -> None:
        self._wandb = load("wandb", "wandb", "+to=wandb")
        try:
            self._run = self._wandb.init(project=project, name=name, config=config, id=run_id, resume="allow")
        except self._wandb.Error as error:
            raise RunError(f"Weights & Biases did not begin a run: {error}") from error

    @property
    def logged(self) -> int:
        """See `Tracker.logged`. Offline the summary of an earlier command is not at hand."""
        last = self._run.summary.get(ROLLOUTS)
        return int(last) if isinstance(last, int | float) else 0

    @property
    def place(self) -> str:
        """See `Tracker.place`."""
        return str(self._run.url or self._run.dir)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See `Tracker.log`."""
        self._run.log(dict(metrics), step=step)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], step: int) -> None:
        """See `Tracker.table`."""
        made = self._wandb.Table(columns=list(columns), data=[list(row) for row in rows], allow_mixed_types=True)
        # Under a name of its own: ROLLOUTS is the number that a later command goes on from.
        self._run.log({"rollout_table": made}, step=step)

    def close(self, *, failed: bool) -> None:
        """See `Tracker.close`."""
        self._run.finish(exit_code=int(failed))
