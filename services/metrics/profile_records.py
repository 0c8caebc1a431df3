"""The records of `profile.json`: frozen, with finite numbers, and null where a number is undefined."""

from __future__ import annotations

from rollyard.services.datasets.spread import Spread
from rollyard.services.types import Json, Record


class Estimate(Record):
    """A mean with its 95 % interval, clustered by task."""

    mean: float
    stderr: float | None = None
    """None for a single task, or without variance between tasks."""
    low: float | None = None
    high: float | None = None
    """Mean ∓ t(tasks - 1) * stderr. Without a standard error, a share that is equal in all tasks has a bound from
    the number of tasks (`confidence_intervals.share_bounds`). None if there is no interval."""


class Bounds(Record):
    """Bounds of a mean if no rollout were missing. None if the number of expected rollouts is unknown."""

    missing_as_zero: float | None
    lowest: float | None
    """The value if every missing rollout is as bad as the worst measured one (for a success rate: none solved)."""
    highest: float | None
    """The value if every missing rollout is as good as the best measured one (for a success rate: all solved)."""


class Coverage(Record):
    """How many of the expected rollouts are measured. Shown with every headline number."""

    measured: int
    """Rollouts with a reward."""
    expected: int | None
    """Expected rollouts; None if no file contains the number."""
    expected_from: str
    """Name of the file that contains the number, or ''."""
    tasks_measured: int
    """Tasks with at least one measured rollout; 0 if rows have no task index."""
    tasks_expected: int | None
    tasks_complete: int | None
    """Tasks with all expected rollouts measured."""
    repeats: int | None
    """Expected rollouts per task."""

    @property
    def missing(self) -> int | None:
        """Expected rollouts that are not measured."""
        return None if self.expected is None else max(0, self.expected - self.measured)


class Solved(Record):
    rule: str
    """What counts as solved, as a readable text."""
    rollouts: int
    rate: Estimate
    bounds: Bounds


class Bin(Record):
    """A bar of a histogram: rewards in [low, high), including `high` in the last bar. low = high is a single value."""

    low: float
    high: float
    rollouts: int


class RewardValue(Record):
    """One distinct reward and its number of rollouts."""

    reward: float
    rollouts: int


class Rewards(Record):
    """Rewards of the measured rollouts."""

    mean: Estimate
    why_no_mean: str = ""
    """Why the mean must not be shown: the datasets have different reward scales. Empty if it may be."""
    min: float
    max: float
    median: float
    std: float | None
    """Over rollouts, with n - 1 degrees of freedom."""
    bounds: Bounds
    distinct: int
    most_frequent: list[RewardValue]
    """Up to 20 entries, by frequency."""
    histogram: list[Bin]


class ByCalls(Record):
    """Rollouts with this many tool calls."""

    tool_calls: int
    rollouts: int
    mean_reward: float
    solved: int | None


class ToolCalls(Record):
    """Tool calls: items of type `function_call`."""

    mean: float
    min: int
    max: int
    correlation: float | None
    """Pearson's correlation between tool calls and reward; None if either is constant."""
    by_count: list[ByCalls]


class SolveBin(Record):
    """Tasks by the share of their measured rollouts that solved them."""

    label: str
    low: float
    high: float
    """Exclusive at 100 % unless `low` is 1."""
    tasks: int


class PassAtK(Record):
    """pass@k and pass^k, unbiased, over the tasks with at least k measured rollouts."""

    k: int
    tasks: int
    """Measured tasks with at least k rollouts."""
    tasks_measured: int
    any: Estimate
    """pass@k: at least one of k rollouts solves the task."""
    every: Estimate
    """pass^k: all k rollouts solve the task."""
    any_missing_failed: float | None
    """pass@k over all expected tasks, counting missing rollouts as failed; None if nothing is missing."""
    every_missing_failed: float | None


class ZeroVariance(Record):
    """Tasks whose rollouts all have the same reward, so group-relative advantages and the gradient are zero."""

    tasks: int
    of: int
    """Tasks with at least two measured rollouts."""
    all_solved: int | None
    none_solved: int | None


class Tasks(Record):
    """Metrics of repeats of the same task."""

    tasks: int
    fewest_repeats: int
    most_repeats: int
    never_solved: int | None
    always_solved: int | None
    never_solved_first: list[int]
    """The first 20 tasks that were never solved, by index."""
    solve_rates: list[SolveBin]
    pass_at: list[PassAtK]
    zero_variance: ZeroVariance


class Group(Record):
    """Rollouts that share one name, such as an agent or a finish reason."""

    name: str
    rollouts: int
    solved: int | None
    mean_reward: float


class DatasetFigures(Record):
    """The metrics of one dataset of a mixture."""

    name: str
    """`dataset_name`; empty for rows without one."""
    rollouts: int
    tasks: int
    """0 if rows have no task index."""
    solved: int | None
    solved_rule: str
    rate: Estimate | None
    """Success rate; None if "solved" is undefined."""
    mean_reward: float
    reward: Estimate
    min: float
    max: float
    pass_at: list[PassAtK]


class Tokens(Record):
    """Tokens, from `usage`."""

    input: Spread | None
    output: Spread | None
    reasoning: Spread | None
    per_solved: float | None
    """Input and output tokens of all rollouts that record them, divided by the number of these that are solved."""


class Stage(Record):
    """Time that episodes spent in one stage, in seconds, from `timings`."""

    stage: str
    seconds: Spread
    share: float | None
    """Share of the `total` of all rollouts that record one, so the shares of the stages and the rest sum to 1.
    If the stages of a rollout overlap and exceed its total, their sum replaces the total. None if no rollout records a
    total, and for a total that the stages exceed."""


class Drift(Record):
    """Prefix mismatches between the recorded tokens of consecutive turns, from `token_trail`."""

    rollouts: int
    """Rollouts with recorded tokens."""
    turns: int
    """Turns after the first whose tokens are recorded."""
    breaks: int
    """Turns whose prompt does not begin with exactly the tokens of the previous turn."""
    rate: float | None
    """breaks / turns."""
    broken_rollouts: int
    most_segments: int


class FailureKindCount(Record):
    """Failed attempts of one kind."""

    kind: str
    attempts: int
    lost: int
    """Missing rollouts whose last attempt failed with this kind."""
    servers: list[str]
    """Servers where the failures started, most frequent first."""


class Failures(Record):
    """Failed attempts, which never count as rewards."""

    attempts: int
    mended: int
    """Rollouts that were measured after a failed attempt."""
    lost: int
    """Rollouts that failed and were never measured."""
    kinds: list[FailureKindCount]


class Profile(Record):
    """The metrics of one rollout file."""

    name: str
    path: str
    models: list[str]
    agents: list[str]
    notes: list[str]
    """Remarks on the file, as readable sentences."""
    coverage: Coverage
    solved: Solved | None
    """None if the environment reports no success and no threshold was given."""
    rewards: Rewards | None
    """None if nothing is measured (as for the fields below)."""
    tool_calls: ToolCalls | None
    turns: Spread | None
    tasks: Tasks | None
    """None also if rows have no task index."""
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
