"""Two runs side by side, task by task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.metrics.bytask import ByTask
from services.metrics.columns import Floats, Ints
from services.metrics.comparison import Difference, difference
from services.metrics.profile import Run
from services.viewer.fresh import Fresh
from services.viewer.opened_run import OpenedRun
from services.viewer.records import Comparison, TaskPair

SORTS = ("task", "change", "first", "second")


@dataclass(frozen=True)
class Compared:
    """Every task that one of two runs has measured; NaN where a run has not."""

    difference: Difference
    task: Ints
    rewards: tuple[Floats, Floats]
    solved: tuple[Floats, Floats]
    measured: tuple[Ints, Ints]

    @classmethod
    def of(cls, first: Run, second: Run) -> Compared:
        """Of two runs."""
        both = (first.by_task, second.by_task)
        empty = np.empty(0, np.int64)
        tasks = np.union1d(*(empty if one is None else one.task for one in both))
        (reward_a, solved_a, count_a), (reward_b, solved_b, count_b) = (_spread(one, tasks) for one in both)
        found = difference(first, second)
        return cls(found, tasks, (reward_a, reward_b), (solved_a, solved_b), (count_a, count_b))

    def page(self, runs: tuple[int, int], sort: str, start: int, limit: int) -> Comparison:
        """A stretch of the tasks; those that say nothing of `sort` come last."""
        order = self._order(sort)[start : start + limit]
        return Comparison(
            runs=runs,
            difference=self.difference if self.difference.tasks else None,
            note=" ".join(self.difference.notes),
            total=len(self.task),
            start=start,
            tasks=[self._pair(index) for index in order.tolist()],
        )

    def _pair(self, index: int) -> TaskPair:
        return TaskPair(
            task=int(self.task[index]),
            rewards=(_known(self.rewards[0][index]), _known(self.rewards[1][index])),
            solved=(_known(self.solved[0][index]), _known(self.solved[1][index])),
            measured=(int(self.measured[0][index]), int(self.measured[1][index])),
        )

    def _order(self, sort: str) -> Ints:
        name, way = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
        rewards = self.rewards[1] - self.rewards[0]
        if name == "change":
            solved = self.solved[1] - self.solved[0]
            # Where nothing says what solved is, every difference is NaN and the rewards decide.
            return np.lexsort((way * rewards, way * solved))
        values = self.task.astype(float) if name == "task" else self.rewards[SORTS.index(name) - 2]
        return np.argsort(way * values, kind="stable")


class Comparing:
    """Pairs of runs, each compared anew when one of the two has changed. Any thread may ask."""

    def __init__(self, runs: Sequence[OpenedRun]) -> None:
        self._runs = runs
        self._pairs: dict[tuple[int, int], Fresh[Compared]] = {}

    def of(self, first: int, second: int) -> Compared:
        """The comparison of two runs, by number."""
        (end_a, a), (end_b, b) = (self._runs[number].numbers() for number in (first, second))
        made = self._pairs.setdefault((first, second), Fresh())
        return made.get((end_a, end_b, id(a), id(b)), lambda: Compared.of(a, b))


def _spread(found: ByTask | None, tasks: Ints) -> tuple[Floats, Floats, Ints]:
    """Mean reward, solve rate and rollouts of each of `tasks`."""
    reward, solved = np.full(len(tasks), np.nan), np.full(len(tasks), np.nan)
    measured = np.zeros(len(tasks), np.int64)
    if found is not None:
        there = np.searchsorted(tasks, found.task)
        reward[there], measured[there] = found.mean, found.measured
        if found.solve_rate is not None:
            solved[there] = found.solve_rate
    return reward, solved, measured


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
