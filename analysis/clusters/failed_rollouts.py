"""Selects the rollouts that failed: those that an expression selects, or else the unsolved ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollyard.analysis.findings.evidence import Flags
from rollyard.analysis.metrics.loader.where import parsed_condition, rollouts_where
from rollyard.analysis.metrics.profile import Run
from rollyard.records.errors import OperatorError


@dataclass(frozen=True)
class Failed:
    """A run and which of its measured rollouts failed."""

    run: Run
    path: Path
    mask: Flags
    rule: str
    """Which rollouts count as failed, for users."""


def failed_rollouts(run: Run, where: str | None = None) -> Failed:
    """Return the failed rollouts of a run that was loaded from a file.

    `where`: an expression, such as `reward < 0.5`. Without one, the rollouts that did not solve their task failed; if
    "solved" is undefined, those with a reward in the lower half of the range.

    Raises OperatorError if `where` is not an expression over fields of the rows, or the file cannot be read.
    """
    if run.file is None:
        raise OperatorError(f"{run.profile.name} was not loaded from a file; clusters are read from rollout files")
    if where:
        mask = rollouts_where(run.file, run.columns, parsed_condition(where))
        return Failed(run, run.file, mask, where)
    if run.solved is not None:
        return Failed(run, run.file, ~run.solved, "not solved")
    reward = run.columns.reward
    low, high = (float(reward.min()), float(reward.max())) if len(reward) else (0.0, 0.0)
    middle = (low + high) / 2
    return Failed(run, run.file, np.asarray((reward < middle) & (high > low)), f"reward < {middle:g}")
