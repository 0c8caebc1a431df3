"""KeyAssignment: gives every row of a rollout file its key, by the content of its task."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollyard.records.io.json_values import whole_number
from rollyard.records.rollouts.rewards import EXPECTED, is_reward
from rollyard.records.rollouts.rollout_keys import Key, KeySet
from rollyard.services.rollouts.task_index import TaskIndex

_OPEN = -1


class KeyAssignment:
    """The keys of rows that were added in file order.

    A row whose own key fits its task keeps it. Every other row gets the first free repeat of its task once all rows
    are known; among duplicate tasks, it belongs to the first one with a free repeat.
    """

    def __init__(self, index: TaskIndex, repeats: int) -> None:
        self._index = index
        self._repeats = repeats
        self._tasks = array("q")
        self._numbers = array("q")
        self._undecided: dict[int, Sequence[int]] = {}
        """Position of a row without a valid key -> the tasks that it may belong to."""
        self.done = KeySet()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, row: Mapping[str, Any]) -> str:
        """Add a row. Return what is wrong with it, to be appended to `line 17`; empty if it is a rollout of a task."""
        if not is_reward(row.get("reward")):
            return f"has reward {row.get('reward')!r:.40}; {EXPECTED}"
        candidates = self._index.candidates(row)
        if not candidates:
            return "is not a rollout of a task of the input"
        task, repeat = whole_number(row.get("_ng_task_index"), least=0), whole_number(row.get("_ng_rollout_index"))
        fits = task is not None and task in candidates
        if fits and repeat is not None:
            assert task is not None
            if not 0 <= repeat < self._repeats:
                return f"is repeat {repeat} of task {task}; expected 0 to {self._repeats - 1}"
            if self.done.add((task, repeat)):
                self._append(task, repeat)
                return ""
            if "_ng_task_key" in row:
                return f"repeats task {task}, repeat {repeat}"
        if not fits and len({self._index.keys[found] for found in candidates}) > 1:
            return f"fits {len(candidates)} tasks of the input; expected _ng_task_index, or the fields of its task"
        self._undecided[len(self._tasks)] = [task] if fits and task is not None else candidates
        self._append(_OPEN, _OPEN)
        return ""

    def finish(self) -> dict[int, str]:
        """Decide the keys of the remaining rows. Return what is wrong with those that get none, by position."""
        problems = {}
        for position, candidates in self._undecided.items():
            task = next((found for found in candidates if self.done.repeats_of(found) < self._repeats), None)
            if task is None:
                problems[position] = f"is an additional rollout of task {candidates[0]}, which has {self._repeats}"
                continue
            repeat = next(number for number in range(self._repeats) if (task, number) not in self.done)
            self.done.add((task, repeat))
            self._tasks[position], self._numbers[position] = task, repeat
        return problems

    @property
    def changed(self) -> int:
        """Number of rows that did not have the key that they got."""
        return len(self._undecided)

    def keys(self) -> Iterator[Key]:
        """Yield the keys of the added rows in order, after `finish`."""
        return zip(self._tasks, self._numbers, strict=True)

    def _append(self, task: int, repeat: int) -> None:
        self._tasks.append(task)
        self._numbers.append(repeat)
