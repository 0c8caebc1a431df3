"""Rollout files: rows as ng_collect_rollouts and NeMo Gym write them, and the files beside them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile import Run
from rollyard.records.types import Json

CALL: Json = {"type": "function_call", "name": "step", "arguments": "{}", "call_id": "c"}
ANSWER: Json = {"type": "function_call_output", "call_id": "c", "output": "{}"}
MESSAGE: Json = {"type": "message", "role": "assistant", "content": []}


def row(task: int, repeat: int, reward: float | None, *, calls: int = 1, **more: Any) -> Json:
    """A rollout as NeMo Gym writes it, without the keys that Rollyard adds except those in `more`."""
    output = [CALL, ANSWER] * calls + [MESSAGE]
    usage = {"input_tokens": 100 * calls, "output_tokens": 10, "total_tokens": 100 * calls + 10}
    return {
        "responses_create_params": {"input": f"play {task}"},
        "response": {"output": output, "usage": usage},
        "reward": reward,
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        **more,
    }


def solved(task: int, repeat: int, success: bool, **more: Any) -> Json:
    return row(task, repeat, 1.0 if success else 0.0, success=success, **more)


def grid(counts: Sequence[int], repeats: int) -> list[Json]:
    """Rows of len(counts) tasks; `counts[i]` of the `repeats` rollouts of task i are solved."""
    return [solved(task, repeat, repeat < count) for task, count in enumerate(counts) for repeat in range(repeats)]


def random_rows(tasks: int, repeats: int, seed: int = 0) -> list[Json]:
    """Rollouts like a Sokoban run's in random order: rewards in tenths, hard and easy tasks."""
    rng = random.Random(seed)
    rows = []
    for task in range(tasks):
        ease = rng.random()
        for repeat in range(repeats):
            success, calls = rng.random() < ease, rng.randrange(1, 12)
            reward = 0.0
            for _ in range(calls):
                reward += -0.1
            reward += 11.0 if success else rng.choice([0.0, -1.0])
            end = "done" if success else rng.choice(["answered", "max_steps"])
            model_s = rng.random()
            timings = {"model_s": model_s, "tool_s": 0.25, "total_s": model_s + 0.5, "model_calls": calls + 1}
            made = row(task, repeat, reward, calls=calls, success=success, finish_reason=end, timings=timings)
            rows.append({**made, "agent_ref": {"name": "player"}})
    rng.shuffle(rows)
    return rows


def write(path: Path, rows: Iterable[Json], *, tail: bytes = b"") -> Path:
    """Write the rows, then the bytes of `tail`, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows) + tail)
    return path


def write_manifest(path: Path, tasks: int, repeats: int, **more: Any) -> None:
    """Write X_manifest.json beside `path`."""
    identity = {"input_sha256": "same", "rows": tasks, "num_repeats": repeats, **more}
    beside = path.with_name(f"{path.stem}_manifest.json")
    beside.write_bytes(orjson.dumps({"identity": identity, "versions": {}, "created": 0.0}))


def write_failures(path: Path, failed: Iterable[tuple[int, int, str]]) -> None:
    """Write X_failures.jsonl beside `path`, with (task, repeat, kind) for each attempt."""
    rows = (
        {"_ng_task_index": task, "_ng_rollout_index": repeat, "failure_kind": kind, "server": "policy_model"}
        for task, repeat, kind in failed
    )
    write(path.with_name(f"{path.stem}_failures.jsonl"), rows)


def load_run(folder: Path, rows: Iterable[Json], name: str = "rollouts", **options: Any) -> Run:
    return load(write(folder / f"{name}.jsonl", rows), **options)
