"""Compares two runs task by task; also the statistics of paired differences, which run_pair.py uses.

These are McNemar's test, Tango's interval, the bootstrap, Student's t, detectable effects and Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from rollyard.analysis.metrics.columns import Floats, Ints, displayable
from rollyard.analysis.metrics.estimators import Estimate, estimate, mean, sign_test
from rollyard.analysis.metrics.per_task import PerTask
from rollyard.analysis.metrics.profile import Run
from rollyard.records.scores import share_bounds, unchanged_bound
from rollyard.records.types import Json, Record, differences

SAME_INPUT = "index"
"""Tasks are paired by index, because the manifests show that both runs had the same input."""
BY_CONTENT = "content"
"""Tasks are paired by `_ng_task_key`, which the collector writes."""
BY_PROMPT = "prompt"
"""Tasks are paired by prompt and tools, which must be unique among the tasks of each run."""


@dataclass(frozen=True)
class Side:
    """The tasks of one run, with duplicate tasks merged. All arrays have the same length."""

    key: Ints
    """Keys that identify the tasks, in ascending order."""
    task: Ints
    """Index of the first task with this key."""
    measured: Ints
    mean: Floats
    solve_rate: Floats | None
    index: Ints
    """Index in `key` of each task of the run. Its length is the number of tasks before merging."""


@dataclass(frozen=True)
class Pairing:
    """The tasks that two runs have in common."""

    by: str
    """How tasks are paired: SAME_INPUT, BY_CONTENT or BY_PROMPT; '' if they cannot be paired."""
    why_not: str
    """Why no tasks are paired; empty if some are."""
    sides: tuple[Side, Side] | None = None
    here: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Indexes of the common tasks: `here` in the first side, `there` in the second."""
    there: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def pair(baseline: Run, other: Run) -> Pairing:
    """Pair tasks by index if both manifests state the same input, otherwise by content or, failing that, by prompt."""
    before, after = baseline.by_task, other.by_task
    if before is None or after is None:
        return Pairing("", "one of the two runs has no measured rollout with a task index")
    inputs = [(run.profile.identity or {}).get("input_sha256") for run in (baseline, other)]
    if inputs[0] is not None and inputs[0] == inputs[1]:
        return matched(SAME_INPUT, _side(before, before.task), _side(after, after.task))
    for by in (BY_CONTENT, BY_PROMPT):
        first, second = side_by(by, baseline), side_by(by, other)
        if first is not None and second is not None:
            return matched(by, first, second)
    unlike = "no manifest shows that their inputs are the same"
    return Pairing(
        "",
        f"{unlike if None in inputs else 'their inputs differ (input_sha256)'}, and their rows do not identify the "
        "tasks: some lack _ng_task_key, which ng_collect_rollouts writes, and the prompts are not unique",
    )


def side_by(by: str, run: Run) -> Side | None:
    """Return the tasks of a run with their keys: SAME_INPUT, BY_CONTENT or BY_PROMPT. None if its rows have none."""
    if (grouped := run.by_task) is None:
        return None
    if by == SAME_INPUT:
        return _side(grouped, grouped.task)
    values = run.columns.content if by == BY_CONTENT else run.columns.prompt
    keys = values[grouped.starts]
    # A rollout has no value, or the rollouts of a task have different ones.
    if (keys == 0).any() or (values != np.repeat(keys, grouped.measured)).any():
        return None
    return _side(grouped, keys) if by == BY_CONTENT or len(np.unique(keys)) == len(keys) else None


def matched(by: str, first: Side, second: Side) -> Pairing:
    """Pair the tasks of two runs by their keys."""
    _, here, there = np.intersect1d(first.key, second.key, assume_unique=True, return_indices=True)
    why = "" if len(here) else "they have no task in common"
    return Pairing(by, why, (first, second), here, there)


def _side(grouped: PerTask, keys: Ints) -> Side:
    key, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    task = grouped.task[first]
    if len(key) == len(keys):
        rate = None if grouped.solve_rate is None else grouped.solve_rate[first]
        return Side(key, task, grouped.measured[first], grouped.mean[first], rate, inverse)
    measured = np.bincount(inverse, weights=grouped.measured).astype(np.int64)
    mean = np.bincount(inverse, weights=grouped.mean * grouped.measured) / measured
    rate = None if grouped.solved is None else np.bincount(inverse, weights=grouped.solved) / measured
    return Side(key, task, measured, mean, rate, inverse)


_LARGEST = 10


class Change(Record):
    """A task whose result changed between two runs."""

    task: int
    """In the baseline; `task_here` is the task's index in the other run."""
    task_here: int
    before: float
    after: float


class DatasetDifference(Record):
    """The difference between two runs on one dataset in a mixture."""

    name: str
    """The dataset's name in the baseline, from `dataset_name`."""
    tasks: int
    reward: Estimate
    solve_rate: Estimate | None


class Difference(Record):
    """The difference between a run and the baseline on the tasks that both contain. Each task has the same weight."""

    name: str
    baseline: str
    paired_by: str
    """By `index` (both runs had the same input), `content` (`_ng_task_key`) or `prompt`; empty if not paired."""
    tasks: int
    """Number of tasks in both runs. If it is 0, nothing is compared and `notes` contains the reason."""
    only_baseline: int
    only_here: int
    reward: Estimate | None
    """Mean of the tasks' differences in mean reward, with its paired interval. None if datasets have different reward
    scales; `datasets` then contains the difference on each dataset."""
    solve_rate: Estimate | None
    outcome: str
    """The metric that the next fields compare: solve rate, or mean reward if "solved" is undefined."""
    better: int
    worse: int
    equal: int
    sign_test_p: float | None
    sign_test_tasks: int
    """Number of tasks in the sign test. Those with different numbers of rollouts in the two runs would bias it."""
    gained: list[Change]
    """The ten largest changes."""
    lost: list[Change]
    datasets: list[DatasetDifference]
    """Empty unless the run is a mixture."""
    identity: list[str]
    """The differences between the two runs' manifests, one string per difference."""
    notes: list[str]


def difference(baseline: Run, other: Run) -> Difference:
    """Compare `other` with `baseline` on the tasks measured in both. Each task has the same weight."""
    pairing = pair(baseline, other)
    (before, after), here, there = pairing.sides or (None, None), pairing.here, pairing.there
    head: dict[str, Any] = {"name": other.profile.name, "baseline": baseline.profile.name, "paired_by": pairing.by}
    head["identity"] = changed_settings(baseline.profile.identity or {}, other.profile.identity or {})
    if before is None or after is None or pairing.why_not:
        return Difference(
            **head,
            only_baseline=0 if baseline.by_task is None else len(baseline.by_task),
            only_here=0 if other.by_task is None else len(other.by_task),
            outcome="",
            notes=[f"Nothing to compare: {pairing.why_not}."],
            **dict.fromkeys(("reward", "solve_rate", "sign_test_p")),
            **dict.fromkeys(("tasks", "better", "worse", "equal", "sign_test_tasks"), 0),
            **{name: [] for name in ("gained", "lost", "datasets")},
        )
    rewards, rates = after.mean[there] - before.mean[here], None
    change, first, second = rewards, before.mean[here], after.mean[there]
    if before.solve_rate is not None and after.solve_rate is not None:
        first, second = before.solve_rate[here], after.solve_rate[there]
        change = rates = second - first
    task = before.task[here]
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    equal_counts = before.measured[here] == after.measured[there]
    tasks = task, after.task[there]
    return Difference(
        **head,
        tasks=len(task),
        only_baseline=len(before.key) - len(task),
        only_here=len(after.key) - len(task),
        reward=None if different_scales(baseline, other) else paired(rewards),
        solve_rate=None if rates is None else paired(rates, is_share=True),
        outcome="mean reward" if rates is None else "solve rate",
        better=better,
        worse=worse,
        equal=len(task) - better - worse,
        sign_test_p=sign_test(int((change[equal_counts] > 0).sum()), int((change[equal_counts] < 0).sum())),
        sign_test_tasks=int(equal_counts.sum()),
        gained=_changes(tasks, first, second, np.lexsort((task, -change))[: min(_LARGEST, better)]),
        lost=_changes(tasks, first, second, np.lexsort((task, change))[: min(_LARGEST, worse)]),
        datasets=_datasets(baseline, task, rewards, rates),
        notes=_notes(baseline, other, pairing, equal_counts=int(equal_counts.sum())),
    )


def paired(differences: Floats, *, is_share: bool = False) -> Estimate:
    """Return the mean of the tasks' differences with its 95% paired t interval. `differences` has one value per task.

    If all differences are equal, that of a share is derived from the number of tasks (`records/scores.py`).
    """
    center, count = mean(differences), len(differences)
    if count > 1 and np.ptp(differences) > 0:
        return estimate(center, math.fsum((differences - center) ** 2) / (count - 1) / count, count)
    if is_share and center == 0:
        reach = unchanged_bound(count)
        return Estimate(mean=center, low=-reach, high=reach)
    bounds = share_bounds((1 + center) / 2, count) if is_share else None
    return (
        Estimate(mean=center)
        if bounds is None
        else Estimate(mean=center, low=2 * bounds[0] - 1, high=2 * bounds[1] - 1)
    )


def changed_settings(before: Json, after: Json) -> list[str]:
    """Return the differences between the identities in two manifests, such as `num_repeats: 8 -> 16`."""
    lines = []
    for name, old, new in differences(before, after):
        short = 12 if name.endswith("sha256") else None
        lines.append(f"{displayable(name)}: {_display(old)[:short]} -> {_display(new)[:short]}")
    return lines


def _display(value: object) -> str:
    if isinstance(value, dict):
        return displayable(f"set ({value['implementation']})") if "implementation" in value else "set"
    return "not set" if value is None else displayable(str(value))


def _changes(tasks: tuple[Ints, Ints], before: Floats, after: Floats, chosen: Ints) -> list[Change]:
    return [
        Change(task=int(tasks[0][i]), task_here=int(tasks[1][i]), before=float(before[i]), after=float(after[i]))
        for i in chosen.tolist()
    ]


def _datasets(baseline: Run, task: Ints, rewards: Floats, rates: Floats | None) -> list[DatasetDifference]:
    """Return the difference on each dataset of the baseline; empty unless the baseline has several datasets."""
    grouped, names = baseline.by_task, baseline.columns.dataset
    if grouped is None or not baseline.profile.by_dataset:
        return []
    codes = names.codes[grouped.starts[np.searchsorted(grouped.task, task)]]
    found = [
        DatasetDifference(
            name="" if code < 0 else names.names[code],
            tasks=int((codes == code).sum()),
            reward=paired(rewards[codes == code]),
            solve_rate=None if rates is None else paired(rates[codes == code], is_share=True),
        )
        for code in np.unique(codes).tolist()
    ]
    return sorted(found, key=lambda one: one.name)


def _notes(baseline: Run, other: Run, pairing: Pairing, *, equal_counts: int) -> list[str]:
    notes = []
    if pairing.by in (BY_CONTENT, BY_PROMPT) and pairing.sides is not None:
        what = "content (_ng_task_key)" if pairing.by == BY_CONTENT else "prompt and tools"
        first, second = (len(side.key) for side in pairing.sides)
        notes.append(
            f"Tasks are paired by {what}. {len(pairing.here):,} tasks are in both runs ({first:,} in "
            f"{baseline.profile.name}, {second:,} in {other.profile.name}); only these are compared."
        )
    if equal_counts < len(pairing.here):
        coverage = f"it covers the other {equal_counts:,} tasks" if equal_counts else "no task qualifies"
        notes.append(
            f"{len(pairing.here) - equal_counts:,} of {len(pairing.here):,} tasks have more rollouts in one run than "
            f"in the other. The sign test requires equal numbers, so {coverage}."
        )
    return notes + unlike_rules(baseline, other)


def unlike_rules(*runs: Run) -> list[str]:
    """Return a note if the runs define differently what counts as solved."""
    if len({run.profile.solved.rule if run.profile.solved else "" for run in runs}) == 1:
        return []
    return ["The two runs define solved differently; pass --pass-threshold ... to use one for both."]


def different_scales(*runs: Run) -> bool:
    """Return whether the mean over all rewards is meaningless, because datasets have different reward scales."""
    return any(run.profile.rewards is not None and run.profile.rewards.why_no_mean for run in runs)


_STEPS = 100


class McNemar(Record):
    """McNemar's test on tasks that have one rollout in each run."""

    both: int
    """Number of tasks solved in both runs, in only the candidate or the baseline, and in neither."""
    gained: int
    lost: int
    neither: int
    exact_p: float
    """Two-sided p-value of the exact test; 1 if no task changed."""
    mid_p: float
    """The mid-p variant, which is less conservative (Fagerland, Lydersen & Laake 2013, BMC Medical Research Methodology
    13:91)."""


def mcnemar(both: int, gained: int, lost: int, neither: int) -> McNemar:
    exact, mid = p_values(gained, lost)
    return McNemar(both=both, gained=gained, lost=lost, neither=neither, exact_p=exact, mid_p=mid)


def p_values(gained: int, lost: int) -> tuple[float, float]:
    """Return the exact and the mid-p value. Under the hypothesis, each changed task is a gain with probability 1/2."""
    changed, fewer = gained + lost, min(gained, lost)
    if not changed:
        return 1.0, 1.0
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, changed + 1)))])
    count = np.arange(fewer + 1)
    chances = np.exp(logs[changed] - logs[count] - logs[changed - count] - changed * math.log(2))
    exact = min(1.0, 2 * float(chances.sum()))
    return exact, 1.0 if gained == lost else exact - float(chances[fewer])


def tango_interval(gained: int, lost: int, tasks: int, alpha: float) -> tuple[float, float]:
    """Return the score interval for the difference of two paired shares (Tango 1998, Statistics in Medicine 17(8)).

    It contains 0 exactly if McNemar's test without continuity correction does not reject.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2)
    center = (gained - lost) / tasks

    def score(difference: float) -> float:
        """Return the score statistic of the hypothesis that the candidate's share is higher by `difference`."""
        first = 2 * tasks
        second = -gained - lost + (2 * tasks - gained + lost) * difference
        third = -lost * difference * (1 - difference)
        share_lost = (math.sqrt(max(0.0, second**2 - 4 * first * third)) - second) / (2 * first)
        variance = tasks * (2 * share_lost + difference * (1 - difference))
        distance = gained - lost - tasks * difference
        return math.copysign(math.inf, distance) if variance <= 0 and distance else distance / math.sqrt(variance or 1)

    low = -1.0 if center <= -1 else _root(lambda at: score(at) - z, -1.0, center)
    high = 1.0 if center >= 1 else _root(lambda at: score(at) + z, center, 1.0)
    return low, high


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function crosses 0."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2


# The paired cluster bootstrap: resamples tasks, each with all its rollouts in both runs.

RESAMPLES = 10_000
_DRAWS = 1 << 22
"""Maximum number of indexes drawn at once."""


@dataclass(frozen=True)
class Bootstrap:
    """The distribution of the mean difference over resampled tasks."""

    low: float
    high: float
    """Bounds of the BCa interval (bias-corrected and accelerated: Efron 1987, JASA 82(397)). It is used because few
    tasks change between good checkpoints, so that the distribution is skewed and the percentile interval is off."""
    p: float
    """Two-sided p-value: the share of resamples whose mean deviates from the observed mean by at least as much as the
    observed mean from 0 (Davison & Hinkley 1997, section 4.4)."""


def bootstrap(differences: Floats, alpha: float, seed: int, resamples: int = RESAMPLES) -> Bootstrap:
    """Resample the tasks' differences, which must not all be equal. The order of the tasks does not matter."""
    ordered = np.sort(differences)
    center = mean(ordered)
    means = np.sort(_means(ordered, np.random.default_rng(seed), resamples))
    low, high = _bca(ordered, center, means, alpha)
    tolerance = 1e-12 * float(np.abs(ordered).max())
    extreme = int((np.abs(means - center) >= abs(center) - tolerance).sum())
    return Bootstrap(low, high, (1 + extreme) / (1 + resamples))


def _means(ordered: Floats, random: np.random.Generator, resamples: int) -> Floats:
    """Return the mean of each resample."""
    tasks = len(ordered)
    values, counts = np.unique(ordered, return_counts=True)
    if len(values) * 10 < tasks:  # as when rollouts are solved or not: only the numbers of each value matter
        return np.asarray(random.multinomial(tasks, counts / tasks, size=resamples) @ values / tasks)
    means = np.empty(resamples)
    size = max(1, _DRAWS // tasks)
    for begin in range(0, resamples, size):
        end = min(begin + size, resamples)
        means[begin:end] = ordered[random.integers(0, tasks, (end - begin, tasks), dtype=np.int32)].mean(axis=1)
    return means


def _bca(differences: Floats, center: float, means: Floats, alpha: float) -> tuple[float, float]:
    normal = NormalDist()
    tolerance = 1e-12 * float(np.abs(differences).max())
    below = ((means < center - tolerance).sum() + (means <= center + tolerance).sum()) / (2 * len(means))
    share = min(max(float(below), 0.5 / len(means)), 1 - 0.5 / len(means))
    off = differences - center
    # The jackknife values of a mean are linear in the differences, so the acceleration has a closed form.
    acceleration = math.fsum((off**3).tolist()) / (6 * math.fsum((off**2).tolist()) ** 1.5)
    bias = normal.inv_cdf(share)

    def bound(level: float) -> float:
        z = bias + normal.inv_cdf(level)
        return float(np.quantile(means, normal.cdf(bias + z / (1 - acceleration * z))))

    return bound(alpha / 2), bound(1 - alpha / 2)


POWER = 0.8


def detectable_effect(deviation: float, tasks: int, alpha: float) -> float | None:
    """Return the smallest true difference that the test detects with the power `POWER`.

    `deviation` is the standard deviation of the tasks' differences. None if it is 0 or there are too few tasks.
    """
    z = NormalDist().inv_cdf(1 - alpha / 2)
    freedom = tasks - z**2 / 2
    if deviation <= 0 or freedom <= 0:
        return None
    return (z + NormalDist().inv_cdf(POWER)) * deviation / math.sqrt(freedom)


def tasks_needed(deviation: float, effect: float, alpha: float) -> int | None:
    """Return how many tasks the test needs to detect a true difference of `effect`; None if `deviation` is 0."""
    if deviation <= 0:
        return None
    z = NormalDist().inv_cdf(1 - alpha / 2)
    return math.ceil(((z + NormalDist().inv_cdf(POWER)) * deviation / effect) ** 2 + z**2 / 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (1979, Scandinavian Journal of Statistics 6(2)), in the given order.

    Rejecting those below alpha keeps the probability of any wrong rejection below alpha, whatever their dependence.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


# Student's t distribution for any level, without scipy.

_LARGE = 2000
"""Degrees of freedom from which the expansion around the normal quantile is used."""


def two_sided_p(t: float, freedom: int) -> float:
    """Return P(|T| > |t|), from the finite series for integer degrees of freedom (Abramowitz & Stegun 1964, 26.7.3-4).

    Above 2,000 degrees of freedom, it is an approximation with a relative error below 1e-5.
    """
    if freedom > _LARGE:
        return 2 * NormalDist().cdf(-_normal_from_t(abs(t), freedom))
    angle = math.atan2(abs(t), math.sqrt(freedom))
    cosine = math.cos(angle)
    if freedom % 2:
        factors = np.arange(2, freedom - 2, 2) / np.arange(3, freedom - 1, 2)
        terms = math.sin(angle) * cosine * _series(factors, cosine**2, (freedom - 1) // 2)
        inside = 2 / math.pi * (angle + terms)
    else:
        factors = np.arange(1, freedom - 2, 2) / np.arange(2, freedom - 1, 2)
        inside = math.sin(angle) * _series(factors, cosine**2, freedom // 2)
    return min(1.0, max(0.0, 1.0 - inside))


@cache
def quantile(alpha: float, freedom: int) -> float:
    """Return t with P(|T| > t) = alpha."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > alpha else (low, middle)
    return (low + high) / 2


def _series(factors: np.ndarray[tuple[int], np.dtype[np.float64]], square: float, terms: int) -> float:
    """Return 1 + f1 s + f1 f2 s^2 + ..., with `terms` terms."""
    if not terms:
        return 0.0
    return 1.0 + float(np.cumprod(factors[: terms - 1] * square).sum())


def _normal_from_t(t: float, freedom: int) -> float:
    """Return the normal deviate with the same tail (Wallace 1959, Annals of Mathematical Statistics 30(4))."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return scale * math.sqrt(freedom * math.log1p(t * t / freedom))
