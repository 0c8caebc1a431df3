"""Records of a gate's verdict."""

from __future__ import annotations

from enum import StrEnum

from rollyard.analysis.metrics.paired.records import ChangedTasks, ComparedRun, PairedDifference
from rollyard.records.types import Record


class Decision(StrEnum):
    """The result of a rule, and of all rules together."""

    GO = "GO"
    """The whole interval of the gain is above the required one."""
    NO_GO = "NO-GO"
    """The whole interval of the gain is below the required one."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The interval contains the required gain: the runs are too small to tell."""

    @property
    def exit_status(self) -> int:
        return {Decision.GO: 0, Decision.NO_GO: 1, Decision.INCONCLUSIVE: 3}[self]


class RuleResult(Record):
    """The result of one rule."""

    metric: str
    dataset: str | None
    requirement: str
    """The rule as text."""
    decision: Decision
    least_gain: float
    """The gain that the candidate must exceed; negative if a drop is allowed."""
    gain: float
    """How much better the candidate is than the baseline, over the measured rollouts."""
    low: float | None
    """Lower bound of the gain's interval, with missing rollouts counted against the candidate."""
    high: float | None
    """Upper bound of the gain's interval, with missing rollouts counted in favour of the candidate."""
    missing_baseline: int
    missing_candidate: int
    tasks: int
    tasks_needed: int | None
    """If inconclusive: number of tasks with which a candidate that equals the baseline would get a GO with a
    probability of 80%. None for rules that require a gain, and if it cannot be estimated."""
    reason: str
    """Why the decision was made, as a sentence."""
    difference: PairedDifference
    """Candidate minus baseline over the measured rollouts."""


class GateVerdict(Record):
    """The contents of a gate's JSON file."""

    version: str
    decision: Decision
    baseline: ComparedRun
    candidate: ComparedRun
    tasks: int
    alpha: float
    seed: int
    resamples: int
    rules: list[RuleResult]
    settings: list[str]
    """The differences between the runs that `allow_different` allowed."""
    changed_by: str
    """The metric of the first rule, by which tasks are in `regressed` and `improved`."""
    regressed: ChangedTasks
    improved: ChangedTasks
    notes: list[str]
