"""Records of a comparison of two runs. All numbers are finite; undefined numbers are null."""

from __future__ import annotations

from pydantic import Field

from rollyard.analysis.metrics.paired.mcnemar import McNemar
from rollyard.analysis.metrics.profile_records import Coverage
from rollyard.records.types import Record


class Interval(Record):
    """A confidence interval of a difference."""

    low: float
    high: float
    method: str


class PairedDifference(Record):
    """The difference between two runs in one metric, over tasks of equal weight."""

    metric: str
    dataset: str | None
    """The dataset in a mixture; None for all tasks."""
    tasks: int
    baseline: float
    candidate: float
    difference: float
    """Candidate minus baseline."""
    interval: Interval | None
    """The interval used for decisions; None if it cannot be estimated."""
    t_interval: Interval | None
    """The paired t interval, which assumes a normal distribution of the mean."""
    test: str
    """The test behind `p`."""
    p: float | None
    """Two-sided p-value of the hypothesis that both runs are equal."""
    p_holm: float | None = None
    """`p` with Holm's correction over the differences that are tested together; None if only one is tested."""
    mcnemar: McNemar | None
    """Only if each task has one binary outcome in each run: a metric of a single rollout, or pass@k or cons@k with k
    rollouts."""
    sign_test_p: float | None
    better: int
    worse: int
    equal: int
    detectable_effect: float | None
    """The smallest true difference that a comparison of this size detects with a power of 80%; None if it is unknown,
    or above 1 for a share: there are too few tasks."""
    tasks_needed: int | None
    """Number of tasks needed to detect `--effect` with a power of 80%; None if it is not given."""


class ChangedTask(Record):
    """A task whose result differs between two runs."""

    task: int
    """Index of the task in the baseline, `_ng_task_index`."""
    task_in_candidate: int
    key: str
    """`_ng_task_key`; empty if the rows have none."""
    dataset: str
    baseline: float
    candidate: float


class ChangedTasks(Record):
    """The tasks that changed in one direction."""

    total: int = 0
    tasks: list[ChangedTask] = Field(default_factory=list)
    """The first 10,000, largest change first."""


class ComparedRun(Record):
    name: str
    path: str
    models: list[str]
    coverage: Coverage
    tasks: int


class RunPair(Record):
    """The comparison of a candidate with the baseline."""

    baseline: ComparedRun
    candidate: ComparedRun
    paired_by: str
    """How tasks were paired: by `index`, `content` or `prompt`; empty if they could not be paired."""
    tasks: int
    """Number of tasks in both runs."""
    only_baseline: int
    only_candidate: int
    differences: list[PairedDifference]
    """One for each metric over all tasks, then for each dataset of a mixture."""
    costs: list[PairedDifference]
    """Tokens, turns, tool calls and seconds per rollout, as far as the rows record them. Not tested."""
    changed_by: str
    """The metric that decides whether a task is in `gained` or `lost`."""
    gained: ChangedTasks
    """The tasks in which the candidate is better."""
    lost: ChangedTasks
    settings: list[str]
    """The differences between the two manifests, such as `num_repeats: 8 -> 16`."""
    notes: list[str]


class RunComparisons(Record):
    """The contents of `comparison.json`: one or more candidates, each compared with the same baseline."""

    version: str
    alpha: float
    effect: float | None
    seed: int
    resamples: int
    tests: int
    """Number of p-values that Holm's correction covers: all metrics of all candidates over all tasks."""
    pairs: list[RunPair]
