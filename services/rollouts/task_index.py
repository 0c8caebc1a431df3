"""TaskIndex: finds the task of an input that a rollout belongs to, by the task's content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.records.rollouts.rollout_keys import PROMPT, digest, prompt_of, task_fields, task_key
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import Tasks

_MAX_PROJECTIONS = 32
"""Rows are untrusted: each set of keys that a row shares with the tasks needs one more pass over the input."""

_Shape = frozenset[str]


class TaskIndex:
    """The tasks of an input by content. Duplicate tasks are separate tasks with the same content."""

    def __init__(self, tasks: Tasks) -> None:
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


def sampling_params(row: Mapping[str, Any]) -> Json:
    """Return the create parameters of a row without its prompt."""
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
