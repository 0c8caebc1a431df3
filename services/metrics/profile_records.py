"""The numbers of a profile, as they stand in `profile.json`: frozen, finite, and null where nothing can be said."""

from __future__ import annotations

from rollyard.services.datasets.spread import Spread
from rollyard.services.types import Json, Record


class Estimate(Record):
    """A mean with its 95 % interval, clustered by task."""

    mean: float
    stderr: float | None = None
    """None: a single task, or no spread between tasks."""
    low: float | None = None
    high: float | None = None
    """With a standard error mean ∓ t(tasks - 1) * stderr. Without one, of a share that every task has alike, a bound
    from the number of tasks (`confidence_intervals.share_bounds`); None where nothing can be said."""


class Bounds(Record):
    """What a mean could be if nothing were missing. None: it is not known how many were asked for."""

    missing_as_zero: float | None
    lowest: float | None
    """The missing ones as bad as the worst that was measured (of a success rate: none solved)."""
    highest: float | None
    """The missing ones as good as the best that was measured (of a success rate: all solved)."""


class Coverage(Record):
    """How much of what was asked for is measured. It stands on every headline number."""

    measured: int
    """Rollouts with a reward."""
    expected: int | None
    """Rollouts asked for; None where no file says."""
    expected_from: str
    """The file that says, or ''."""
    tasks_measured: int
    """Tasks with at least one of them; 0 where rows do not say their task."""
    tasks_expected: int | None
    tasks_complete: int | None
    """Tasks with as many as were asked for."""
    repeats: int | None
    """Rollouts asked of each task."""

    @property
    def missing(self) -> int | None:
        """Rollouts asked for and not measured."""
        return None if self.expected is None else max(0, self.expected - self.measured)


class Solved(Record):
    """Rollouts that solved their task."""

    rule: str
    """What counts as solved here."""
    rollouts: int
    rate: Estimate
    bounds: Bounds


class Bin(Record):
    """A bar of a histogram: rewards in [low, high), the last one's high included; low = high is a single value."""

    low: float
    high: float
    rollouts: int


class RewardValue(Record):
    """One distinct reward and how often it was given."""

    reward: float
    rollouts: int


class Rewards(Record):
    """Rewards of the measured rollouts."""

    mean: Estimate
    why_no_mean: str = ""
    """Why the mean is not to be shown: it is over data sets whose rewards are on different scales."""
    min: float
    max: float
    median: float
    std: float | None
    """Over rollouts, n - 1."""
    bounds: Bounds
    distinct: int
    most_frequent: list[RewardValue]
    """Up to 20, by frequency, as in the seed's report."""
    histogram: list[Bin]


class ByCalls(Record):
    """Rollouts with this many tool calls."""

    tool_calls: int
    rollouts: int
    mean_reward: float
    solved: int | None


class ToolCalls(Record):
    """Tool calls, by the seed's count: items of type `function_call`."""

    mean: float
    min: int
    max: int
    correlation: float | None
    """Pearson's, between tool calls and reward; None when one of them does not vary."""
    by_count: list[ByCalls]


class SolveBin(Record):
    """Tasks by the share of their measured rollouts that solved them."""

    label: str
    low: float
    high: float
    """Open at 100 % unless low is 1."""
    tasks: int


class PassAtK(Record):
    """pass@k and pass^k, unbiased, over the tasks with at least k measured rollouts."""

    k: int
    tasks: int
    """So many of the measured tasks have k rollouts."""
    tasks_measured: int
    any: Estimate
    """pass@k: at least one of k solves."""
    every: Estimate
    """pass^k: all k solve."""
    any_missing_failed: float | None
    """pass@k over all tasks asked for, with what is missing counted as failed; None when nothing is missing."""
    every_missing_failed: float | None


class ZeroVariance(Record):
    """Tasks of whose rollouts all got the same reward: they give no advantage in a group, and no gradient."""

    tasks: int
    of: int
    """Tasks with at least two measured rollouts."""
    all_solved: int | None
    none_solved: int | None


class Tasks(Record):
    """What repeats of one task say."""

    tasks: int
    fewest_repeats: int
    most_repeats: int
    never_solved: int | None
    always_solved: int | None
    never_solved_first: list[int]
    """The first 20 of those never solved, by index."""
    solve_rates: list[SolveBin]
    pass_at: list[PassAtK]
    zero_variance: ZeroVariance


class Group(Record):
    """Rollouts that have one name in common: an agent's, or a reason to end."""

    name: str
    rollouts: int
    solved: int | None
    mean_reward: float


class DatasetFigures(Record):
    """One data set of a mixture."""

    name: str
    """`dataset_name`; empty for rows that have none."""
    rollouts: int
    tasks: int
    """0 where rows do not say which task they are."""
    solved: int | None
    solved_rule: str
    rate: Estimate | None
    """Success rate; None where nothing says what counts as solved."""
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
    """Input and output tokens of all rollouts that record them, for each one of them that is solved."""


class Stage(Record):
    """Seconds that episodes spent in one stage, from `timings`."""

    stage: str
    seconds: Spread
    share: float | None
    """Of the `total` of all rollouts that record one, so that the shares of the stages and of what is left add up to 1.
    Where the stages of a rollout overlap, and so exceed its total, their sum takes its place. None where no rollout
    records a total, and for a total that stages exceed."""


class Drift(Record):
    """How well recorded tokens hang together over turns, from `token_trail`."""

    rollouts: int
    """With tokens on record."""
    turns: int
    """Later turns whose tokens are on record."""
    breaks: int
    """Those of them whose prompt does not begin with exactly the turn before."""
    rate: float | None
    """breaks / turns."""
    broken_rollouts: int
    most_segments: int


class FailureKindCount(Record):
    """Failed attempts of one kind."""

    kind: str
    attempts: int
    lost: int
    """Rollouts that are missing and whose last attempt failed so."""
    servers: list[str]
    """Where they began, most frequent first."""


class Failures(Record):
    """What went wrong. None of it is a reward."""

    attempts: int
    mended: int
    """Rollouts that failed at first and are measured all the same."""
    lost: int
    """Rollouts that failed and are not measured."""
    kinds: list[FailureKindCount]


class Profile(Record):
    """One rollout file in numbers."""

    name: str
    path: str
    models: list[str]
    agents: list[str]
    notes: list[str]
    """What a reader must know of the file."""
    coverage: Coverage
    solved: Solved | None
    """None: the world reports no success and no threshold was given."""
    rewards: Rewards | None
    """None: nothing is measured; so for the rest."""
    tool_calls: ToolCalls | None
    turns: Spread | None
    tasks: Tasks | None
    """None too where rows do not say which task they are."""
    ends: list[Group]
    """Why episodes ended, by `finish_reason`."""
    by_agent: list[Group]
    """Where several agents played."""
    by_dataset: list[DatasetFigures]
    """Where rows are of several data sets."""
    by_code: list[Group]
    """By version of the servers' code, where its change was accepted."""
    tokens: Tokens
    stages: list[Stage]
    drift: Drift | None
    """None where no tokens were recorded."""
    failures: Failures
    identity: Json | None
    """The manifest's: what makes the collection itself."""
