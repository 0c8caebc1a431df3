"""Defines the records of `profile.json`. They are immutable, and all numbers are finite; undefined numbers are null."""

from __future__ import annotations

from rollyard.analysis.metrics.estimators import Estimate, MeanSpread
from rollyard.records.types import Json, Record


class FailureKindCount(Record):
    kind: str
    attempts: int
    lost: int
    """Number of missing rollouts whose last attempt failed this way."""
    share: Estimate | None = None
    """Of all attempts, measured or failed, with each task as one trial."""
    servers: list[str]
    """Servers where the failures originated, most frequent first."""


class Failures(Record):
    """Failed attempts, which never count as rewards."""

    attempts: int
    mended: int
    """Number of rollouts that were measured after a failed attempt; those in `lost` never were."""
    lost: int
    kinds: list[FailureKindCount]


class Drift(Record):
    """Prefix mismatches between the recorded tokens of consecutive turns, from `token_trail`."""

    rollouts: int
    """Number of rollouts with recorded tokens."""
    turns: int
    """Number of turns after the first whose tokens are recorded."""
    breaks: int
    """Number of turns whose prompt does not begin with exactly the tokens of the previous turn."""
    rate: float | None
    broken_rollouts: int
    most_segments: int


class Bounds(Record):
    """What a mean could be if no rollout were missing; None if the number of expected rollouts is unknown."""

    missing_as_zero: float | None
    lowest: float | None
    """If every missing rollout is as bad as the worst measured one, or unsolved; for `highest`, as good as the best."""
    highest: float | None


class Coverage(Record):
    """How many of the expected rollouts are measured. Shown with every headline number."""

    measured: int
    """Number of rollouts with a reward."""
    expected: int | None
    """None if no file contains it."""
    expected_from: str
    """Name of the file that contains the expected number; '' if none does, or why no number is expected."""
    tasks_measured: int
    """Number of tasks with at least one measured rollout; 0 if rows have no task index."""
    tasks_expected: int | None
    tasks_complete: int | None
    repeats: int | None
    """Number of expected rollouts per task."""

    @property
    def missing(self) -> int | None:
        return None if self.expected is None else max(0, self.expected - self.measured)


class Solved(Record):
    rule: str
    rollouts: int
    rate: Estimate
    bounds: Bounds


class Bin(Record):
    """A histogram bar for rewards in [low, high). The last bar includes `high`. For a single value, low = high."""

    low: float
    high: float
    rollouts: int


class RewardValue(Record):
    reward: float
    rollouts: int
    share: Estimate | None = None


class Rewards(Record):
    mean: Estimate
    why_no_mean: str = ""
    """Why the mean must not be shown: datasets have different reward scales. Empty if it may be shown."""
    min: float
    max: float
    median: float
    std: float | None
    bounds: Bounds
    distinct: int
    most_frequent: list[RewardValue]
    """Up to 20 rewards, most frequent first."""
    histogram: list[Bin]


class ByCalls(Record):
    """The rollouts with a given number of tool calls. The other fields are those of `Group`."""

    tool_calls: int
    rollouts: int
    mean_reward: float
    solved: int | None
    share: Estimate | None = None
    reward: Estimate | None = None
    rate: Estimate | None = None


class ToolCalls(Record):
    mean: float
    min: int
    max: int
    correlation: float | None
    """Pearson's correlation between tool calls and reward; None if either of them is constant."""
    by_count: list[ByCalls]


class SolveBin(Record):
    """The number of tasks whose solve rate (the solved share of their measured rollouts) is in a given range."""

    label: str
    low: float
    high: float
    """Upper end of the range. It is exclusive unless it equals `low`."""
    tasks: int
    share: Estimate | None = None


class PassAtK(Record):
    """Unbiased pass@k, pass^k and cons@k over the tasks with at least k measured rollouts."""

    k: int
    tasks: int
    tasks_measured: int
    """Number of tasks, whatever their number of rollouts."""
    any: Estimate
    """pass@k: the probability that at least one of k rollouts solves the task; `every`: that all do."""
    every: Estimate
    consensus: Estimate | None = None
    """cons@k: the probability that the most common answer of k rollouts is right. None without `extracted_answer`, if k
    is above 128, or if a task has more than 1,000 rollouts."""
    any_missing_failed: float | None
    """pass@k over all expected tasks, with missing rollouts counted as failed; None if nothing is missing."""
    every_missing_failed: float | None


class ZeroVariance(Record):
    """Tasks whose rollouts all have the same reward, so their group-relative advantages and gradients are zero."""

    tasks: int
    of: int
    """Number of tasks with at least two measured rollouts."""
    all_solved: int | None
    none_solved: int | None
    share: Estimate | None = None
    """Share of these tasks; None if no task has two rollouts."""


class Tasks(Record):
    tasks: int
    fewest_repeats: int
    most_repeats: int
    never_solved: int | None
    always_solved: int | None
    never_solved_first: list[int]
    """The first 20 tasks that were never solved, ordered by index."""
    solve_rates: list[SolveBin]
    pass_at: list[PassAtK]
    zero_variance: ZeroVariance


class Group(Record):
    name: str
    rollouts: int
    solved: int | None
    mean_reward: float
    share: Estimate | None = None
    """Share of the measured rollouts."""
    reward: Estimate | None = None
    rate: Estimate | None = None
    """Share of these rollouts that are solved; None if "solved" is undefined."""


class DatasetFigures(Record):
    name: str
    """From `dataset_name`; empty for rows without one."""
    rollouts: int
    tasks: int
    """Number of tasks; 0 if rows have no task index."""
    solved: int | None
    solved_rule: str
    rate: Estimate | None
    mean_reward: float
    reward: Estimate
    min: float
    max: float
    pass_at: list[PassAtK]


class Tokens(Record):
    input: MeanSpread | None
    output: MeanSpread | None
    reasoning: MeanSpread | None
    per_solved: float | None
    """Total input and output tokens divided by the number of solved rollouts, over the rollouts that record tokens."""


class Stage(Record):
    stage: str
    seconds: MeanSpread
    share: float | None
    """Share of the total time of all rollouts that record a `total`. The shares of the stages and the rest add up to 1:
    if the stages exceed the total, their sum replaces it, and the stage `total` has no share."""


class Profile(Record):
    name: str
    path: str
    models: list[str]
    agents: list[str]
    notes: list[str]
    """Remarks about the file, as complete sentences."""
    coverage: Coverage
    solved: Solved | None
    """None if "solved" is undefined or nothing is measured."""
    rewards: Rewards | None
    """None if nothing is measured. The same applies to the next three fields."""
    tool_calls: ToolCalls | None
    turns: MeanSpread | None
    tasks: Tasks | None
    """Also None if rows have no task index."""
    ends: list[Group]
    """Why episodes ended, by `finish_reason`."""
    by_agent: list[Group]
    """Empty unless there are several agents."""
    by_dataset: list[DatasetFigures]
    """Empty unless there are several datasets."""
    by_code: list[Group]
    """Results by version of the servers' code; empty unless a code change was accepted during the run."""
    tokens: Tokens
    stages: list[Stage]
    drift: Drift | None
    """None if no tokens were recorded."""
    failures: Failures
    identity: Json | None
    """The run's identity, from the manifest."""
