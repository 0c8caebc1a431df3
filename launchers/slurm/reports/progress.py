"""Progress of a combination: how many of its rows are done, from the files of its evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.launchers.evaluation.eval_state import EvalFolder
from rollyard.launchers.slurm.launch.launch_records import Combination
from rollyard.records.rollouts.status_file import read_status
from rollyard.services.rollouts.shards import shard_progress


@dataclass(frozen=True)
class Progress:
    measured: int | None
    """Rollouts with a reward; None if the collection has not begun."""
    expected: int | None
    is_complete: bool = False
    """Every rollout is measured and in one file."""


def read_progress(combination: Combination) -> Progress:
    output = EvalFolder(combination.run).rollouts.output
    merged = read_status(output)
    if merged is not None and merged.expected and merged.measured == merged.expected:
        return Progress(merged.measured, merged.expected, is_complete=True)
    if (found := shard_progress(output)) is not None:
        return Progress(*found)
    return Progress(None, None) if merged is None else Progress(merged.measured, merged.expected)
