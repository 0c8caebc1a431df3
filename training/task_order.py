"""TaskOrder: which rows of the dataset each step plays, and StepTasks: those of one step, as tasks of a collection."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import DatasetTasks, Rollout

_AGAIN = "again"


@dataclass(frozen=True, slots=True, order=True)
class Draw:
    """One use of a row."""

    epoch: int
    row: int
    """Index of the row in the dataset, from 0."""
    returns: int = 0
    """How often the row has gone back into the order because its rollouts failed."""


@dataclass(frozen=True, slots=True)
class OrderPosition:
    """Position in the order. As a mapping of integers, it is part of a checkpoint."""

    epoch: int = 0
    index: int = 0
    """Number of rows of the epoch that have been drawn."""
    returned: tuple[Draw, ...] = ()
    """Rows that are drawn again at the end of the epoch, sorted."""

    def record(self, rows: int) -> dict[str, int]:
        """Return the position for the checkpoint; `rows`: those of the dataset."""
        again = {f"{_AGAIN}_{draw.epoch}_{draw.row}": draw.returns for draw in self.returned}
        return {"rows": rows, "epoch": self.epoch, "index": self.index, **again}


class TaskOrder:
    """The order of a dataset's rows: that of the file, or one for each epoch that depends only on seed and epoch.

    Rows that went back are drawn after the last row of the epoch, so that they do not change the order of the others.
    """

    def __init__(self, rows: int, *, seed: int, shuffle: bool, epochs: int | None) -> None:
        """`epochs`: how often each row is drawn; None: without end."""
        self.rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._epochs = epochs
        self._known: tuple[int, list[int]] = (-1, [])

    def position(self, record: Mapping[str, int]) -> OrderPosition:
        """Return the position in a checkpoint; that of the start if `record` is empty.

        Raises RunError if the dataset had another number of rows.
        """
        if record.get("rows", self.rows) != self.rows:
            raise RunError(
                f"the dataset has {self.rows} rows, but it had {record['rows']} when the checkpoint was saved: restore "
                "the dataset, or train into another output_dir"
            )
        again = [(name.split("_"), count) for name, count in record.items() if name.startswith(f"{_AGAIN}_")]
        returned = sorted(Draw(int(parts[1]), int(parts[2]), count) for parts, count in again)
        return OrderPosition(record.get("epoch", 0), record.get("index", 0), tuple(returned))

    def take(self, position: OrderPosition, count: int) -> tuple[list[Draw], OrderPosition]:
        """Return the next `count` draws and the position after them; fewer draws if the order ends.

        Taking rows one by one gives the same draws as taking them together.
        """
        drawn: list[Draw] = []
        epoch, index, returned = position.epoch, position.index, list(position.returned)
        while len(drawn) < count:
            if index < self.rows:
                drawn.append(Draw(epoch, self._epoch(epoch)[index]))
                index += 1
            elif returned:
                drawn.append(returned.pop(0))
            elif self._epochs is None or epoch + 1 < self._epochs:
                epoch, index = epoch + 1, 0
            else:
                break
        return drawn, OrderPosition(epoch, index, tuple(returned))

    def put_back(self, position: OrderPosition, draws: Iterable[Draw], max_returns: int) -> OrderPosition:
        """Return the position with these draws added to the end of its epoch, except those that went back
        `max_returns` times already.
        """
        again = [replace(draw, returns=draw.returns + 1) for draw in draws if draw.returns < max_returns]
        return replace(position, returned=tuple(sorted([*position.returned, *again])))

    def _epoch(self, number: int) -> list[int]:
        if self._known[0] != number:
            order = list(range(self.rows))
            if self._shuffle:
                random.Random(f"{self._seed}/{number}").shuffle(order)
            self._known = (number, order)
        return self._known[1]


class StepTasks:
    """Implements `Tasks`. A task's index is its place in the step, because a step may use a row more than once."""

    def __init__(
        self,
        data: DatasetTasks,
        draws: Sequence[Draw],
        rows: Sequence[Rollout],
        *,
        first: int,
    ) -> None:
        """`rows`: the row of each draw. `first`: index of the first task to play; those before it have been played."""
        self.count = len(draws)
        # Not only those of the step's rows: tasks that are added later must not change the collection's identity.
        self.agents = data.agents
        self.digest = data.digest
        self.files: set[Path] = data.files
        self.identity: Json = {**data.identity, "rows": len(draws), "task_rows": [draw.row for draw in draws]}
        self._rows = rows
        self._first = first

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Yield all repeats of each task that is to be played."""
        for index in range(self._first, self.count):
            for repeat in range(repeats):
                yield replace(self._rows[index], task_index=index, rollout_index=repeat)


def rows_at(data: DatasetTasks, indices: Collection[int]) -> dict[int, Rollout]:
    """Return rows of a dataset by index, in one pass. Raises RunError if one of them has changed."""
    wanted, found = set(indices), dict[int, Rollout]()
    for rollout in data.rollouts(1):
        if rollout.task_index in wanted:
            found[rollout.task_index] = rollout
            if len(found) == len(wanted):
                break
    return found
