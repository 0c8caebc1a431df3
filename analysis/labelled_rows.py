"""Labelled rollouts as rows of a data set: the task, the conversation, the corrected reward, the labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.analysis.metrics.columns import Columns
from rollyard.records.data_files import DataFile
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import lenient, line_at
from rollyard.records.note_records import RolloutNotes, note_values
from rollyard.records.rewards import is_measured, task_of
from rollyard.records.rollout_keys import task_key
from rollyard.records.rows import exact_objects
from rollyard.records.types import Json

NOTES_KEY = "_ng_notes"
"""Keys that begin with `_ng_` are not part of a task, so that notes do not change it."""


@dataclass(frozen=True)
class RewardScale:
    """What a verdict is worth as a reward."""

    correct: float | None
    wrong: float | None

    def reward_of(self, verdict: str | float) -> float:
        """Return the reward of a verdict. Raises OperatorError if it is unknown."""
        if not isinstance(verdict, str):
            return verdict
        reward = self.correct if verdict == "correct" else self.wrong
        if reward is None:
            raise OperatorError(
                f"the rewards of this file are not in 0..1, so that it is unknown what {verdict!r} is worth; pass "
                "--correct-reward ... and --wrong-reward ..."
            )
        return reward


def scale_of(columns: Columns, correct: float | None, wrong: float | None) -> RewardScale:
    """Return the scale with these rewards; by default 1 and 0 if all rewards are in 0..1, else unknown."""
    rewards = columns.reward
    if len(rewards) and rewards.min() >= 0 and rewards.max() <= 1:
        return RewardScale(1.0 if correct is None else correct, 0.0 if wrong is None else wrong)
    return RewardScale(correct, wrong)


def with_labels(notes: Mapping[int, RolloutNotes], labels: Iterable[str]) -> dict[int, RolloutNotes]:
    """Return the rollouts that have at least one of the labels; all of them if there are no labels."""
    wanted = set(labels)
    return {offset: one for offset, one in notes.items() if not wanted or wanted & set(one.labels)}


def labelled_rows(
    path: Path, notes: Mapping[int, RolloutNotes], scale: RewardScale, dataset: Mapping[str, Json] | None = None
) -> Iterator[Json]:
    """Yield a row for each rollout with notes, in the order of the file. `notes`: by offset.

    A row has the fields of its task, `agent_ref`, `response`, the corrected `reward`, and `_ng_notes`. `dataset`: the
    rows of the tasks by their keys, which are used unchanged. Rollouts with neither a reward nor a verdict are left
    out. Raises OperatorError if a reward is unknown or `dataset` lacks a task, and OSError if the file cannot be read.
    """
    for offset in sorted(notes):
        row, override = lenient(line_at(path, offset)), notes[offset].override
        measured = row["reward"] if is_measured(row) else None
        if override is None and measured is None:
            continue
        yield {
            **(task_of(row) if dataset is None else _dataset_row(dataset, row)),
            "response": row.get("response"),
            "reward": measured if override is None else scale.reward_of(override.verdict),
            NOTES_KEY: {
                **note_values(notes[offset]),
                **({"reason": override.reason} if override is not None and override.reason else {}),
                "verifier_reward": measured,
                "verifier_success": row.get("success"),
                "task": row.get("_ng_task_index"),
                "repeat": row.get("_ng_rollout_index"),
                "task_key": row.get("_ng_task_key"),
            },
        }


def tasks_by_key(file: DataFile) -> dict[str, Json]:
    """Return the rows of a dataset by their task keys. Raises OperatorError if it cannot be read."""
    return {task_key(line.value): line.value for line in exact_objects(file)}


def _dataset_row(dataset: Mapping[str, Json], row: Mapping[str, Any]) -> Json:
    key = str(row.get("_ng_task_key"))
    if key not in dataset:
        raise OperatorError(
            f"input_jsonl_fpath has no row for task {row.get('_ng_task_index')} ({key}); expected the dataset of the "
            "collection. Without this option, tasks are taken from the rollouts"
        )
    agent = {"agent_ref": row["agent_ref"]} if "agent_ref" in row else {}
    return {**agent, **dataset[key]}
