"""Rollouts of checkpoints: tasks with a content key, solved in a given number of their repeats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.records.types import Json
from tests.support.rollout_files import solved


def step_rows(counts: Mapping[int, int], repeats: int = 4, *, first: int = 0, **more: Any) -> list[Json]:
    """Rows of tasks by their content: `counts[content]` of `repeats` rollouts are solved. The tasks' indexes begin at
    `first`, so that files with different ones have the same content at different indexes.
    """
    return [
        solved(first + place, repeat, repeat < count, _ng_task_key=f"{content + 1:016x}", **more)
        for place, (content, count) in enumerate(counts.items())
        for repeat in range(repeats)
    ]
