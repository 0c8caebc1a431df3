"""Partial rollout files: inputs with duplicate tasks, rollouts by Rollyard and by other programs, and their resume."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import task_key
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.rollouts.store import Adopter, RolloutStore
from rollyard.services.rollouts.task_subset import TaskSubset, subset_of_original

AGENT = "agent"
PARAMS = {"temperature": 0.8}


def task(content: int) -> Json:
    return {"seed": content, "responses_create_params": {"input": [{"role": "user", "content": "Play."}]}}


def write_lines(path: Path, rows: Iterable[Json], tail: bytes = b"") -> Path:
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows) + tail)
    return path


def tasks_of(path: Path) -> TaskFile:
    return TaskFile(path, agent=AGENT, limit=None)


def rollout(row: Json, index: int, repeat: int, reward: float | None = 1.0) -> Json:
    params = {**row["responses_create_params"], **PARAMS}
    keys = {"_ng_task_index": index, "_ng_rollout_index": repeat, "_ng_task_key": task_key(row)}
    response: Json = {"output": []}
    agent = {"agent_ref": {"name": AGENT}}
    return {**row, "responses_create_params": params, "reward": reward, **keys, **agent, "response": response}


def without_keys(row: Json) -> Json:
    return {name: value for name, value in row.items() if not name.startswith("_ng_") and name != "agent_ref"}


@dataclass
class Resumed:
    keys: list[tuple[int, int]]
    """Keys of the rollouts that it collected."""
    notes: list[str]


def resume(given: Path, output: Path, repeats: int) -> Resumed:
    """Collect the missing rollouts of the input `given` as `ng_collect_rollouts` does, without servers."""
    tasks = tasks_of(given)
    paths = RolloutPaths(output)
    subset, problem = subset_of_original(tasks, paths, AGENT)
    assert not problem, problem
    used: TaskFile | TaskSubset = subset or tasks
    original = subset.original if subset else tasks
    identity, adopter = {**used.identity, "num_repeats": repeats}, Adopter(original, repeats, PARAMS, seeded=False)
    known: Any = {"input_path": str(original.file), "adopter": adopter}
    store = RolloutStore(paths, identity, {}, resume=True, overwrite=False, **known)
    try:
        store.load()
        collected = []
        for wanted in used.rollouts(repeats):
            key = (wanted.task_index, wanted.rollout_index)
            if key not in store.done:
                store.append(key, orjson.dumps(rollout(wanted.row, *key)))
                collected.append(key)
        return Resumed(collected, store.notes)
    finally:
        store.close()


def check_complete(inputs: Sequence[Json], output: Path, repeats: int) -> None:
    """Every (task, repeat) exactly once, each with its task's content."""
    rows = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    keys = sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)
    assert keys == [(index, repeat) for index in range(len(inputs)) for repeat in range(repeats)]
    assert all(row["seed"] == inputs[row["_ng_task_index"]]["seed"] for row in rows)
