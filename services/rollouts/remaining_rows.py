"""Finds the rows of an input that still lack rollouts, in files of Rollyard and of NeMo Gym."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from rollyard.records.datasets.data_files import lines_of
from rollyard.records.io.jsonl import BadLine, hand_over, iter_jsonl, strict
from rollyard.records.io.lines import with_offsets
from rollyard.services.datasets.tasks import TaskFile
from rollyard.services.rollouts.key_assignment import KeyAssignment
from rollyard.services.rollouts.task_index import TaskIndex
from rollyard.services.rollouts.task_subset import INPUT_PATH, INPUT_ROWS, INPUT_SHA256


@dataclass(frozen=True)
class Remaining:
    """What a rollout file still lacks."""

    found: int
    """Number of (task, repeat) pairs in the file."""
    expected: int
    missing: dict[int, int]
    """Task -> number of missing repeats, for the incomplete tasks in input order."""
    skipped: tuple[tuple[int, str], ...]
    """Lines that are not counted, with the reason, to be appended to `line 17`."""


def find_remaining(tasks: TaskFile, rollouts: Path, repeats: int) -> Remaining:
    """Compare a rollout file with its input, task by task and repeat by repeat. A missing file has no rollouts.

    Raises OperatorError if a file cannot be read.
    """
    index = TaskIndex(tasks)
    assignment = KeyAssignment(index, repeats)
    skipped: list[tuple[int, str]] = []
    numbers: list[int] = []
    source = with_offsets(lines_of(rollouts)) if rollouts.exists() else ()
    for found in iter_jsonl(source, hand_over, parse=strict):
        if not found.line.endswith(b"\n"):  # even if it is valid JSON, the collection sets it aside
            skipped.append((found.number, " is incomplete"))
        elif isinstance(found, BadLine):
            skipped.append((found.number, found.problem))
        elif problem := assignment.add(found.value):
            skipped.append((found.number, f" {problem}"))
        else:
            numbers.append(found.number)
    skipped += [(numbers[position], f" {problem}") for position, problem in assignment.finish().items()]
    done = assignment.done
    missing = {task: left for task in range(len(index)) if (left := repeats - done.repeats_of(task))}
    return Remaining(len(done), len(index) * repeats, missing, tuple(sorted(skipped)))


def remaining_lines(tasks: TaskFile, missing: dict[int, int]) -> Iterator[bytes]:
    """Yield the rows of the incomplete tasks as lines, with their index in the input and the input they are from."""
    origin = {
        INPUT_PATH: str(Path(tasks.file).absolute()),
        INPUT_SHA256: tasks.digest,
        INPUT_ROWS: tasks.count,
    }
    for rollout in tasks.rollouts(1):
        if rollout.task_index in missing:
            row = {name: value for name, value in rollout.row.items() if not name.startswith("_ng_")}
            yield orjson.dumps({**row, "_ng_task_index": rollout.task_index, **origin}) + b"\n"
