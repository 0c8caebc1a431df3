"""Adopts a rollout file that has no manifest, after checking every row against the input and the parameters.

Such files were written by NeMo Gym, copied without the files next to them, or lost their manifest.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from rollyard.records.errors import OperatorError
from rollyard.records.json_values import mapping, text_of
from rollyard.records.locked_files import unused
from rollyard.records.manifest import Adoption
from rollyard.records.rollout_keys import duplicate_key
from rollyard.records.rows import with_seed
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import DatasetTasks
from rollyard.services.rollouts.appender import JsonLines
from rollyard.services.rollouts.task_index import KeyAssignment, TaskIndex, sampling_params

_API_DEFAULTS = {
    "background": False,
    "parallel_tool_calls": True,
    "store": True,
    "stream": False,
    "tool_choice": "auto",
    "truncation": "disabled",
}
"""Parameters that have the same effect when they are not set; validation by OpenAI's types adds some of them."""


class Adopter:
    def __init__(self, tasks: DatasetTasks, repeats: int, params: Mapping[str, Any], *, seeded: bool) -> None:
        self._tasks = tasks
        self._repeats = repeats
        self._params = dict(params)
        self._seeded = seeded

    def adopt(self, rows: JsonLines, before_writing: Callable[[], None] = lambda: None) -> Adoption:
        """Check the rows, and write the keys that are missing or differ.

        If keys are written, `before_writing` is called first, and the original file is kept beside the new one.
        Raises OperatorError if a row is not a rollout of the tasks with these parameters, RunError if the file cannot
        be read or written.
        """
        index = TaskIndex(self._tasks)
        assignment = KeyAssignment(index, self._repeats)
        lines = array("q")
        """Line number of each row."""
        for found in rows.rows():
            if duplicated := duplicate_key(found.line):
                raise self._refused(rows, found.number, f"has the key {duplicated} twice")
            if problem := assignment.add(found.value):
                raise self._refused(rows, found.number, problem)
            lines.append(found.number)
        for position, problem in assignment.finish().items():
            raise self._refused(rows, lines[position], problem)
        for found, (task, repeat) in zip(rows.rows(), assignment.keys(), strict=True):
            if problem := self._difference(found.value, index, task, repeat):
                raise self._refused(rows, found.number, problem)
        backup = ""
        if assignment.changed:
            aside = unused(rows.path.with_name(f"{rows.path.name}.original"))
            before_writing()
            rows.restart(aside, _with_keys(rows, assignment, index))
            backup = aside.name
        return Adoption(time=time.time(), rollouts=len(lines), new_keys=assignment.changed, original=backup)

    def _difference(self, row: Json, index: TaskIndex, task: int, repeat: int) -> str:
        """Return which setting of a rollout differs from the current command; empty if none does."""
        agent = text_of(mapping(row.get("agent_ref")).get("name"))
        if agent and agent != index.agents[task]:
            return f"was collected by the agent {agent!r}, now {index.agents[task]!r}"
        if not isinstance(row.get("responses_create_params"), dict):
            return ""
        now = {**index.params[task], **self._params}
        if self._seeded:
            now["metadata"] = with_seed(now.get("metadata"), repeat)
        now, then = _effective(now), _effective(sampling_params(row))
        for name in sorted({*now, *then}):
            if now.get(name) != then.get(name):
                return f"was collected with {_shown(name, then)}, now {_shown(name, now)}"
        return ""

    def _refused(self, rows: JsonLines, number: int, problem: str) -> OperatorError:
        return OperatorError(
            f"{rows.path} has no manifest, and its rollouts cannot be adopted: line {number} {problem}. Restore "
            f"{rows.path.stem}_manifest.json, delete that line, choose another output, or rename the old files with "
            "--overwrite"
        )


def adoption_note(rows: JsonLines, adopted: Adoption) -> str:
    keys = "they had their keys" if not adopted.new_keys else (
        f"{adopted.new_keys} got a new _ng_task_index or _ng_rollout_index, and the original file is {adopted.original}"
    )  # fmt: skip
    return (
        f"{rows.path} had no manifest: its {adopted.rollouts} rollouts were checked against the input, the agents and "
        f"the parameters, and adopted; {keys}. Unknown and therefore not checked: the settings, code and model of the "
        "servers that collected them"
    )


def _effective(params: Json) -> Json:
    return {
        name: value
        for name, value in params.items()
        if value not in (None, [], {}) and not (name in _API_DEFAULTS and _API_DEFAULTS[name] == value)
    }


def _shown(name: str, params: Json) -> str:
    return f"{name}={params[name]!r:.60}" if name in params else f"no {name}"


def _with_keys(rows: JsonLines, assignment: KeyAssignment, index: TaskIndex) -> Iterator[bytes]:
    for found, (task, repeat) in zip(rows.rows(), assignment.keys(), strict=True):
        keys: Json = {"_ng_task_index": task, "_ng_rollout_index": repeat, "_ng_task_key": index.keys[task]}
        if all(found.value.get(name) == value for name, value in keys.items()):
            yield found.line
        elif any(name in found.value for name in keys):
            # Python's parser keeps integers of any size.
            yield json.dumps({**json.loads(found.line), **keys}, separators=(",", ":")).encode() + b"\n"
        else:
            # The rest of the line stays as it is, with its numbers and the order of its keys.
            yield found.line.rstrip()[:-1] + b"," + orjson.dumps(keys)[1:] + b"\n"
