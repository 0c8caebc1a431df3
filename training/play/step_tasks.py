"""StepTasks: the tasks of one training step, as the tasks of a collection."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.records.datasets.rows import with_seed
from rollyard.records.errors import RunError
from rollyard.records.rollouts.rollout_keys import digest
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import Rollout, Tasks
from rollyard.training.play.task_order import Draw


@dataclass(frozen=True)
class Sampling:
    """Sampling seeds of the rollouts: those of a group follow each other."""

    seed: int
    """Seed of the training run."""
    metadata: Json | None = None
    """`metadata` of the run's create parameters, which replaces that of the rows."""


class StepTasks:
    """Implements `Tasks`. A task's index is its place in the step, because a step may use a row more than once."""

    def __init__(
        self, data: Tasks, draws: Sequence[Draw], rows: Sequence[Rollout], *, first: int, sampling: Sampling | None
    ) -> None:
        """`rows`: the row of each draw. `first`: index of the first task to play; those before it have been played.
        `sampling`: None: the engine samples without seeds.
        """
        self.count = len(draws)
        # Not only those of the step's rows: tasks that are added later must not change the collection's identity.
        self.agents = data.agents
        self.digest = data.digest
        self.files: set[Path] = data.files
        self.identity: Json = {**data.identity, "rows": len(draws), "task_rows": [draw.row for draw in draws]}
        self._draws = draws
        self._rows = rows
        self._first = first
        self._sampling = sampling

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Yield all repeats of each task that is to be played. Raises RunError if a seed cannot be added to a row."""
        for index in range(self._first, self.count):
            for repeat in range(repeats):
                row = self._rows[index].row
                if self._sampling is not None:
                    row = _with_seed(row, self._draws[index], repeat, self._sampling)
                yield replace(self._rows[index], task_index=index, rollout_index=repeat, row=row)


def rows_at(data: Tasks, indices: Collection[int]) -> dict[int, Rollout]:
    """Return rows of a dataset by index, in one pass. Raises RunError if one of them has changed."""
    wanted, found = set(indices), dict[int, Rollout]()
    for rollout in data.rollouts(1):
        if rollout.task_index in wanted:
            found[rollout.task_index] = rollout
            if len(found) == len(wanted):
                break
    return found


def _with_seed(row: Json, draw: Draw, repeat: int, sampling: Sampling) -> Json:
    # 31 bits: engines take signed integers.
    base = int.from_bytes(digest([sampling.seed, draw.epoch, draw.row, draw.returns])) % 2**31
    params = row.get("responses_create_params") or {}
    metadata = params.get("metadata") if sampling.metadata is None else sampling.metadata
    try:
        seeded = with_seed(metadata, (base + repeat) % 2**31)
    except ValueError as error:
        raise RunError(f"row {draw.row + 1} of the dataset cannot get a sampling seed: its {error}") from error
    return {**row, "responses_create_params": {**params, "metadata": seeded}}
