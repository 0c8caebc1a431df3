"""Progress of a combination: how many of its rows are done, from the files of its evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from rollyard.launchers.evaluation.eval_folder import EvalFolder
from rollyard.launchers.slurm.launch.launch_records import Combination
from rollyard.records.rollouts.status_file import read_status
from rollyard.services.rollouts.shared.shared_status import unmerged_statuses


@dataclass(frozen=True)
class Progress:
    measured: int | None
    """Rollouts with a reward; None if the collection has not begun."""
    expected: int | None
    unmerged: int = 0
    """How many of them are still in the shards of single jobs. A rollout that is in two shards counts twice."""

    @property
    def is_complete(self) -> bool:
        return bool(self.expected) and self.measured == self.expected and not self.unmerged


def read_progress(combination: Combination) -> Progress:
    output = EvalFolder(combination.run).rollouts.output
    merged = read_status(output)
    shards = unmerged_statuses(output)
    known = [status for status in (merged, *shards) if status is not None]
    if not known:
        return Progress(None, None)
    unmerged = sum(status.measured for status in shards)
    expected = max(status.expected for status in known)
    return Progress(min((merged.measured if merged else 0) + unmerged, expected), expected, unmerged)
