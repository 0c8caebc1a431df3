"""TaskIndex: finds the task of an input that a rollout belongs to, by the task's content."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rollyard.records.rewards import EXPECTED, is_reward
from rollyard.records.rollout_keys import PROMPT, Key, KeySet, digest, prompt_of, task_fields, task_key
from rollyard.records.types import Json, mapping, whole_number
from rollyard.services.datasets.mixture import DatasetTasks

_MAX_PROJECTIONS = 32
"""Rows are untrusted: each set of keys that a row shares with the tasks needs one more pass over the input."""

_Shape = frozenset[str]


class TaskIndex:
    """The tasks of an input by content. Duplicate tasks are separate tasks with the same content."""

    def __init__(self, tasks: DatasetTasks) -> None:
        self._tasks = tasks
        self.keys: list[str] = []
        """Task -> its `_ng_task_key`."""
        self.agents: list[str] = []
        """Task -> the agent that runs it."""
        self.params: list[Json] = []
        """Task -> the create parameters of its row, without the prompt. Equal ones are the same object."""
        self._by_key: dict[str, list[int]] = {}
        self._shapes: set[_Shape] = set()
        self._projections: dict[tuple[_Shape, _Shape], dict[bytes, list[int]]] = {}
        interned: dict[bytes, Json] = {}
        for rollout in tasks.rollouts(1):
            key = task_key(rollout.row)
            params = sampling_params(rollout.row)
            self.keys.append(key)
            self.agents.append(rollout.agent)
            self.params.append(interned.setdefault(digest(params), params))
            self._by_key.setdefault(key, []).append(rollout.task_index)
            self._shapes.add(frozenset(task_fields(rollout.row)))

    def __len__(self) -> int:
        return len(self.keys)

    def candidates(self, row: Mapping[str, Any]) -> Sequence[int]:
        """Return the tasks that a rollout may belong to, in input order.

        A rollout with `_ng_task_key` belongs to the tasks with that key. Without one, as NeMo Gym writes it, it belongs
        to those with the same prompt for which every field that the rollout repeats has the same value.
        """
        if isinstance(key := row.get("_ng_task_key"), str):
            return self._by_key.get(key, ())
        return self._with_prompt(row) or self._with_prompt(_without_observation(row))

    def _with_prompt(self, row: Mapping[str, Any]) -> Sequence[int]:
        if not prompt_of(row):
            return ()
        found: list[int] = []
        try:
            for shape in self._shapes:
                shared = frozenset(name for name in shape if name in row)
                found += self._projection(shape, shared).get(_projected(row, shared), ())
        except RecursionError:  # nested deeper than a row of the input can be
            return ()
        return sorted(found)

    def _projection(self, shape: _Shape, shared: _Shape) -> dict[bytes, list[int]]:
        if (known := self._projections.get((shape, shared))) is not None:
            return known
        if len(self._projections) >= _MAX_PROJECTIONS:
            self._projections.clear()
        made: dict[bytes, list[int]] = {}
        for rollout in self._tasks.rollouts(1):
            if frozenset(task_fields(rollout.row)) == shape:
                made.setdefault(_projected(rollout.row, shared), []).append(rollout.task_index)
        self._projections[shape, shared] = made
        return made


def _without_observation(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row without the first observation, which NeMo Gym's gymnasium_agent stores at the end of the prompt;
    empty for rows of other agents.
    """
    params = row.get("responses_create_params")
    given = params.get("input") if isinstance(params, dict) else None
    if (
        "terminated" not in row
        or not isinstance(given, list)
        or mapping(given[-1:] and given[-1]).get("role") != "user"
    ):
        return {}
    return {**row, "responses_create_params": {**cast(Json, params), "input": given[:-1]}}


def sampling_params(row: Mapping[str, Any]) -> Json:
    params = row.get("responses_create_params")
    return {name: value for name, value in params.items() if name not in PROMPT} if isinstance(params, dict) else {}


def _projected(row: Mapping[str, Any], shared: _Shape) -> bytes:
    fields = {name: row[name] for name in shared if name != "responses_create_params"}
    return digest({**fields, "responses_create_params": _without_defaults(prompt_of(row))})


def _without_defaults(value: Any) -> Any:
    """Return a prompt without what validation by OpenAI's types adds: nulls, empty lists, the type of messages."""
    if isinstance(value, list):
        return [_without_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_defaults(item) for key, item in value.items() if item is not None and item != []}
    return {key: item for key, item in kept.items() if (key, item) != ("type", "message")}


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
        return len(self._undecided)

    def keys(self) -> Iterator[Key]:
        """Yield the keys of the added rows in order, after `finish`."""
        return zip(self._tasks, self._numbers, strict=True)

    def _append(self, task: int, repeat: int) -> None:
        self._tasks.append(task)
        self._numbers.append(repeat)
