"""Compares a candidate with a baseline: metrics, costs, changed tasks, and differences in settings."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rollyard.analysis.metrics import comparison
from rollyard.analysis.metrics.columns import Floats, Ints
from rollyard.analysis.metrics.comparison import BY_CONTENT, BY_PROMPT, SAME_INPUT, McNemar, Pairing, Side
from rollyard.analysis.metrics.curriculum import pass_at
from rollyard.analysis.metrics.estimators import mean, sign_test
from rollyard.analysis.metrics.per_task import MOST_K, answers_of, votes
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.profile_records import Coverage
from rollyard.analysis.metrics.solved import Flags
from rollyard.analysis.metrics.verdicts import SameAnswers, VerdictComparison
from rollyard.records.errors import OperatorError
from rollyard.records.jsonl import iter_jsonl, skip
from rollyard.records.scores import share_bounds
from rollyard.records.types import MAX_REWARD, Record

SOLVE_RATE, REWARD = "solve_rate", "reward"
COLUMNS = ("tool_calls", "turns", "input_tokens", "output_tokens", "reasoning_tokens")
SECONDS = "seconds"
_AT_K = re.compile(r"(pass|cons)@([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Metric:
    """A metric of tasks: a mean over a task's rollouts, or pass@k or cons@k."""

    name: str

    @property
    def k(self) -> int | None:
        """The k of pass@k and cons@k; None for a mean over rollouts."""
        found = _AT_K.fullmatch(self.name)
        return None if found is None else int(found[2])

    @property
    def votes(self) -> bool:
        return self.k is not None and self.name.startswith("cons")

    @property
    def is_share(self) -> bool:
        """Whether the values of tasks are in 0..1."""
        return self.name == SOLVE_RATE or self.k is not None

    @property
    def is_cost(self) -> bool:
        """Whether a lower value is better."""
        return self.name in (*COLUMNS, SECONDS)


def of_rollouts(run: Run, metric: Metric) -> Floats:
    """Return the metric of each measured rollout, NaN if it is missing. For pass@k and cons@k: whether it is solved.

    Any other name than the known ones is a key of the rows, such as `strict_score` or `reward_components.format`.
    Raises OperatorError if no row has a number under that key, or if the metric is undefined for the run.
    """
    if metric.name == REWARD:
        return run.columns.reward
    if metric.name == SOLVE_RATE or metric.k is not None:
        if run.solved is None:
            raise OperatorError(
                f"{metric.name} is undefined for {run.profile.name}: it is unknown which rollouts solved their task. "
                "Pass --pass-threshold ..., or compare --metric reward"
            )
        if metric.votes and answers_of(run.columns) is None:
            raise OperatorError(
                f"{metric.name} is undefined for {run.profile.name}: its rows have no extracted_answer. Choose another "
                "metric, such as pass@k"
            )
        if metric.votes and (metric.k or 0) > MOST_K:
            raise OperatorError(f"{metric.name} is not computed: expected a k of at most {MOST_K}")
        return run.solved.astype(float)
    if metric.name in COLUMNS:
        values: Floats = getattr(run.columns, metric.name)
    elif metric.name == SECONDS:
        values = run.columns.stages.get("total", np.full(len(run.columns), np.nan))
    else:
        values = np.full(len(run.columns), np.nan) if run.file is None else _row_values(run.file, metric.name, run)
    if np.isnan(values).all():
        raise OperatorError(
            f"no row of {run.profile.path} has a number under {metric.name!r}; expected solve_rate, reward, pass@k, "
            f"cons@k, {', '.join(COLUMNS)}, {SECONDS}, or a key of the rows"
        )
    return values


def _row_values(path: Path, key: str, run: Run) -> Floats:
    """Read a key from all rows. A boolean counts as 0 or 1; nested keys are separated by dots."""
    offset = run.columns.offset
    order = np.argsort(offset)
    values, ordered = np.full(len(offset), np.nan), offset[order].tolist()
    position, parts = 0, key.split(".")
    for line in iter_jsonl(path, skip):
        if position < len(ordered) and ordered[position] == line.offset:
            value: object = line.value.get(key)
            if value is None:
                value = line.value
                for part in parts:
                    value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, int | float) and abs(value) <= MAX_REWARD:
                values[order[position]] = float(value)
            position += 1
    return values


# Records of a comparison of two runs. All numbers are finite; undefined numbers are null.


class Interval(Record):
    low: float
    high: float
    method: str


class PairedDifference(Record):
    metric: str
    dataset: str | None
    """None for all tasks."""
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
    """Only if each task has one binary outcome in each run, as with a single rollout or pass@k of k rollouts."""
    sign_test_p: float | None
    better: int
    worse: int
    equal: int
    detectable_effect: float | None
    """The smallest true difference that is detected with a power of 80%; None if unknown, or above 1 for a share."""
    tasks_needed: int | None
    """Number of tasks needed to detect `--effect` with a power of 80%; None if it is not given."""


class ChangedTask(Record):
    task: int
    """`_ng_task_index` in the baseline."""
    task_in_candidate: int
    key: str
    """`_ng_task_key`; empty if the rows have none."""
    dataset: str
    baseline: float
    candidate: float


class ChangedTasks(Record):
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
    baseline: ComparedRun
    candidate: ComparedRun
    paired_by: str
    """By `index`, `content` or `prompt`; empty if they could not be paired."""
    tasks: int
    only_baseline: int
    only_candidate: int
    differences: list[PairedDifference]
    """One for each metric over all tasks, then for each dataset of a mixture."""
    costs: list[PairedDifference]
    """Tokens, turns, tool calls and seconds per rollout, as far as the rows record them. Not tested."""
    changed_by: str
    """The metric that decides whether a task is in `gained` or `lost`."""
    gained: ChangedTasks
    lost: ChangedTasks
    settings: list[str]
    """The differences between the two manifests, such as `num_repeats: 8 -> 16`."""
    notes: list[str]
    verdicts: VerdictComparison | None = None
    """Only if both runs hold the same answers. All differences are then over the answers with both verdicts."""


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


MCNEMAR = "McNemar's exact test"
BOOTSTRAP = "paired bootstrap over tasks and paired t test, the larger p-value"
SIGN_TEST = "sign test, as all tasks changed equally"
INTERVAL = "paired bootstrap over tasks (BCa), at least the paired t interval"
SHARE_INTERVAL = f"{INTERVAL} and Agresti and Min's adjustment of it"
_NOISE = 1e-12


@dataclass(frozen=True)
class PairLevel:
    alpha: float = 0.05
    """Probability that an interval misses the true difference: half of it on each side."""
    effect: float | None = None
    """The difference for which the number of needed tasks is computed."""
    seed: int = 0
    resamples: int = comparison.RESAMPLES


def difference(
    metric: Metric,
    before: Floats,
    after: Floats,
    level: PairLevel,
    *,
    single: bool,
    equal_counts: Flags | None = None,
    span: float | None = None,
    dataset: str | None = None,
) -> PairedDifference:
    """Compare the values of the same tasks in two runs.

    `single`: every task has one rollout in each run. pass@k and cons@k may be binary with more. `equal_counts` masks
    the tasks with as many rollouts in one run as in the other, to which the sign test is limited. `span` is the
    distance between the best and the worst possible value; it bounds the difference if all tasks changed equally.
    """
    change = after - before
    scale = float(max(np.abs(before).max(), np.abs(after).max()))
    change = np.where(np.abs(change) <= _NOISE * scale, 0.0, change)
    tasks, center = len(change), mean(change)
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    table = _table(metric, before, after) if single or metric.k is not None else None
    deviation, t_interval = 0.0, None
    if tasks > 1 and float(np.ptp(change)) > _NOISE * scale:
        deviation = math.sqrt(math.fsum(((change - center) ** 2).tolist()) / (tasks - 1))
        reach = comparison.quantile(level.alpha, tasks - 1) * deviation / math.sqrt(tasks)
        t_interval = Interval(low=center - reach, high=center + reach, method="paired t interval")
    detectable = comparison.detectable_effect(deviation, tasks, level.alpha)
    interval, p, test = _test(metric, change, deviation, t_interval, table, span, level)
    signed = change if equal_counts is None else change[equal_counts]
    return PairedDifference(
        metric=metric.name,
        dataset=dataset,
        tasks=tasks,
        baseline=mean(before),
        candidate=mean(after),
        difference=center,
        interval=interval,
        t_interval=t_interval,
        test=test,
        p=p,
        mcnemar=table,
        sign_test_p=sign_test(int((signed > 0).sum()), int((signed < 0).sum())),
        better=better,
        worse=worse,
        equal=tasks - better - worse,
        detectable_effect=detectable if detectable and not (metric.is_share and detectable > 1) else None,
        tasks_needed=None if level.effect is None else comparison.tasks_needed(deviation, level.effect, level.alpha),
    )


def _table(metric: Metric, before: Floats, after: Floats) -> McNemar | None:
    both = np.concatenate([before, after])
    if not np.isin(both, (0.0, 1.0)).all() or not (metric.is_share or len(np.unique(both)) == 2):
        return None
    return comparison.mcnemar(
        both=int((before * after).sum()),
        gained=int(((1 - before) * after).sum()),
        lost=int((before * (1 - after)).sum()),
        neither=int(((1 - before) * (1 - after)).sum()),
    )


def _test(
    metric: Metric,
    change: Floats,
    deviation: float,
    t_interval: Interval | None,
    table: McNemar | None,
    span: float | None,
    level: PairLevel,
) -> tuple[Interval | None, float | None, str]:
    """Return the interval, the p-value and the name of the test."""
    tasks, center, alpha = len(change), mean(change), level.alpha
    if table is not None:
        low, high = comparison.tango_interval(table.gained, table.lost, tasks, alpha)
        return Interval(low=low, high=high, method="Tango's score interval"), table.exact_p, MCNEMAR
    if t_interval is None:
        bounds = _unvarying(center, tasks, 1.0 if metric.is_share else span, alpha)
        method = "bound from the number of tasks, as all changed equally"
        interval = None if bounds is None else Interval(low=bounds[0], high=bounds[1], method=method)
        return (interval, 1.0, BOOTSTRAP) if center == 0 else (interval, min(1.0, 2.0 ** (1 - tasks)), SIGN_TEST)
    found = comparison.bootstrap(change, alpha, level.seed, level.resamples)
    p_t = comparison.two_sided_p(center / deviation * math.sqrt(tasks), tasks - 1)
    low, high = min(found.low, t_interval.low), max(found.high, t_interval.high)
    if metric.is_share:
        bounds = _adjusted(change, comparison.quantile(alpha, tasks - 1))
        low, high = max(min(low, bounds[0]), -1.0), min(max(high, bounds[1]), 1.0)
    method = SHARE_INTERVAL if metric.is_share else INTERVAL
    return Interval(low=low, high=high, method=method), max(found.p, p_t), BOOTSTRAP


def _adjusted(change: Floats, t: float) -> tuple[float, float]:
    """Return the t interval with half a task added at each end of the range -1..1.

    For binary outcomes this is Agresti & Min's interval (2005, Statistics in Medicine 24(5)). With it, few tasks that
    happen to include none of the rare large regressions do not look safe: in simulations of 20 to 200 tasks, of which 1
    to 5% regress fully, the lower bound was too high in 0 to 3% of the runs, without it in 3 to 10%.
    """
    tasks = len(change) + 2
    center = math.fsum(change.tolist()) / tasks
    variance = (math.fsum((change**2).tolist()) + 1) / tasks - center**2
    reach = t * math.sqrt(max(0.0, variance) / tasks)
    return center - reach, center + reach


def _unvarying(center: float, tasks: int, span: float | None, alpha: float) -> tuple[float, float] | None:
    """Return the interval if all tasks changed by the same amount, so that no standard error can be estimated.

    If nothing changed, it is the exact bound on the mean of differences in -span..span (see `unchanged_bound`),
    otherwise Wilson's interval with each task as one trial.
    """
    if not span:
        return None
    if center == 0:
        reach = span * (1.0 - (alpha / 2) ** (1.0 / tasks))
        return -reach, reach
    bounds = share_bounds((1 + center / span) / 2, tasks, alpha)
    return None if bounds is None else (span * (2 * bounds[0] - 1), span * (2 * bounds[1] - 1))


@dataclass(frozen=True)
class GroupedRun:
    """A run whose rollouts are assigned to tasks, which are numbered from 0 in both runs."""

    run: Run
    tasks: int
    group: Ints
    """The task of each measured rollout; -1 if it is not compared."""
    first: Ints
    """The index that each task has in this run; -1 if the run has no rollout of it."""
    multiplicity: Ints
    """How many tasks of the run are the same as each task; 0 if the run has no rollout of it."""

    @property
    def counts(self) -> Ints:
        return np.bincount(self.group[self.group >= 0], minlength=self.tasks)

    def known(self, rollouts: Floats) -> Ints:
        """Return the number of rollouts with a value of each task."""
        return np.bincount(self.group[(self.group >= 0) & ~np.isnan(rollouts)], minlength=self.tasks)

    def values(self, metric: Metric, rollouts: Floats, repeats: Ints | None = None, fill: float = 0.0) -> Floats:
        """Return the metric of each task, NaN without a value or with fewer than k. `rollouts`: see `of_rollouts`;
        `fill`: the value of each of `repeats` rollouts that a task lacks.
        """
        known = (self.group >= 0) & ~np.isnan(rollouts)
        counts = np.bincount(self.group[known], minlength=self.tasks)
        sums: Floats = np.bincount(self.group[known], rollouts[known], minlength=self.tasks).astype(np.float64)
        if repeats is not None:
            absent = np.maximum(repeats - counts, 0)
            counts, sums = counts + absent, sums + absent * fill
        found = np.full(self.tasks, np.nan)
        if metric.k is None:
            found[counts > 0] = sums[counts > 0] / counts[counts > 0]
            return found
        enough = counts >= metric.k
        if metric.votes:
            found[enough] = self._votes(metric.k)[enough]
        elif enough.any():
            found[enough] = pass_at(metric.k, counts[enough], np.round(sums[enough]).astype(np.int64))
        return found

    def _votes(self, k: int) -> Floats:
        columns, found = self.run.columns, np.full(self.tasks, np.nan)
        order = np.lexsort((columns.repeat, columns.task, self.group))
        order = order[self.group[order] >= 0]
        group, answers = self.group[order], answers_of(columns)
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        if answers is None or self.run.solved is None or not len(order):
            return found
        measured = np.diff(starts, append=len(group))
        for one in votes(answers[order], self.run.solved[order], starts, measured) or []:
            if one.rollouts >= k:
                found[group[starts[one.tasks]]] = one.shares[:, k - 1]
        return found


def common(pairing: Pairing, runs: tuple[Run, Run], *, all_tasks: bool = False) -> tuple[GroupedRun, GroupedRun]:
    """Number the tasks of both runs, or with `all_tasks` those of either run, in the order of the baseline."""
    assert pairing.sides is not None
    first, second = pairing.sides
    keys = (np.union1d if all_tasks else np.intersect1d)(first.key, second.key)
    place = [np.where((at := _index_in(side.key, keys)) < 0, -1, side.task[at]) for side in (first, second)]
    # The order of the baseline's indexes; tasks that only the second run has come last.
    rank = np.lexsort((place[1], np.where(place[0] < 0, np.iinfo(np.int64).max, place[0])))
    number = np.empty(len(keys), np.int64)
    number[rank] = np.arange(len(keys))
    grouped = [
        _grouped(run, side, keys, number, first_index[rank])
        for run, side, first_index in zip(runs, pairing.sides, place, strict=True)
    ]
    return grouped[0], grouped[1]


def _index_in(keys: Ints, values: Ints) -> Ints:
    """Return the place of each value in the sorted `keys`; -1 if it is not there."""
    at = np.searchsorted(keys, values)
    inside = at < len(keys)
    inside[inside] = keys[at[inside]] == values[inside]
    return np.where(inside, at, -1)


def _grouped(run: Run, side: Side, keys: Ints, number: Ints, first: Ints) -> GroupedRun:
    assert run.by_task is not None
    at = _index_in(keys, side.key)
    task = np.where(at < 0, -1, number[at])[side.index]
    multiplicity = np.bincount(task[task >= 0], minlength=len(keys))
    return GroupedRun(run, len(keys), np.repeat(task, run.by_task.measured), first, multiplicity)


MAX_CHANGED = 10_000
"""Maximum length of the lists of changed tasks."""


@dataclass(frozen=True)
class PairedRuns:
    """Two runs whose rollouts are assigned to common tasks."""

    baseline: GroupedRun
    candidate: GroupedRun
    all_tasks: bool = False
    """Whether the tasks are those of either run, so that a task without a rollout in one of them is missing there."""
    _rollouts: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)

    def rollouts(self, metric: Metric) -> tuple[Floats, Floats]:
        """Return the metric of each rollout in both runs. Raises OperatorError if it is undefined for a run."""
        if metric.name not in self._rollouts:
            both = of_rollouts(self.baseline.run, metric), of_rollouts(self.candidate.run, metric)
            self._rollouts[metric.name] = both
        return self._rollouts[metric.name]

    def values(self, metric: Metric) -> tuple[Floats, Floats]:
        """Return the metric of each task in both runs; see `GroupedRun.values`."""
        first, second = self.rollouts(metric)
        return self.baseline.values(metric, first), self.candidate.values(metric, second)

    def compare(self, metric: Metric, level: PairLevel, dataset: str | None = None) -> PairedDifference | None:
        """Return the difference over the tasks that have the metric in both runs; None if there is no such task."""
        rollouts = self.rollouts(metric)
        before, after = self.values(metric)
        chosen = ~(np.isnan(before) | np.isnan(after))
        if dataset is not None:
            chosen &= self.in_dataset(dataset)
        if not chosen.any():
            return None
        counts = self.baseline.counts[chosen], self.candidate.counts[chosen]
        return difference(
            metric,
            before[chosen],
            after[chosen],
            level,
            single=bool((counts[0] == 1).all() and (counts[1] == 1).all()),
            equal_counts=counts[0] == counts[1],
            span=span_of(rollouts),
            dataset=dataset,
        )

    def in_dataset(self, name: str) -> NDArray[np.bool_]:
        """Return a mask of the tasks of a dataset, which the baseline names, or the candidate for its missing tasks."""
        found = np.zeros(self.baseline.tasks, bool)
        for one in (self.candidate, self.baseline):
            known = one.group >= 0
            column = one.run.columns.dataset
            inside = np.array([own == name for own in column.names] + [name == ""], bool)[column.codes]
            found[one.group[known]] = inside[known]
        return found


def span_of(rollouts: Sequence[Floats]) -> float:
    """Return the distance between the highest and the lowest value of both runs."""
    return max(float(np.nanmax(values)) for values in rollouts) - min(float(np.nanmin(values)) for values in rollouts)


def compare_runs(
    baseline: Run,
    candidate: Run,
    metrics: Sequence[Metric],
    level: PairLevel,
    *,
    pass_threshold: float | None = None,
) -> RunPair:
    """Compare `candidate` with `baseline` on the tasks that both contain. No `metrics`: the `default_metrics`.

    `pass_threshold`: which rewards in notes mean that an answer is correct; default: 1. Raises OperatorError if a given
    metric is undefined for a run.
    """
    if (same := SameAnswers.of(baseline, candidate)) is not None:
        pair = _compare_runs(same.baseline, same.candidate, metrics, level)
        runs = {"baseline": compared_run(baseline), "candidate": compared_run(candidate)}
        return pair.model_copy(update={**runs, "costs": [], "verdicts": same.compare(pass_threshold)})
    return _compare_runs(baseline, candidate, metrics, level)


def _compare_runs(baseline: Run, candidate: Run, metrics: Sequence[Metric], level: PairLevel) -> RunPair:
    pairing = comparison.pair(baseline, candidate)
    sides, chosen = pairing.sides, list[Metric]()
    differences, costs = list[PairedDifference](), list[PairedDifference]()
    gained, lost = ChangedTasks(), ChangedTasks()
    if sides is not None and not pairing.why_not:
        paired = PairedRuns(*common(pairing, (baseline, candidate)))
        chosen, costs = list(metrics) or default_metrics(paired), _costs(paired, level)
        for dataset in (None, *(one.name for one in baseline.profile.by_dataset)):
            for metric in chosen:
                # An effect is a difference of one scale: that of the solve rate, unless the metrics are named.
                own = level if metrics or metric.name == SOLVE_RATE else replace(level, effect=None)
                one = paired.compare(metric, own, dataset)
                if one is not None:
                    differences.append(one)
                elif dataset is None:
                    raise OperatorError(
                        f"no task has {metric.name} in both runs; for pass@k and cons@k, it needs k rollouts"
                    )
        if not metrics and comparison.different_scales(baseline, candidate):
            differences = [one for one in differences if one.metric != REWARD or one.dataset is not None]
        if chosen:
            gained, lost = changed_tasks(paired, chosen[0], lower_is_better=chosen[0].is_cost)
    return RunPair(
        baseline=compared_run(baseline),
        candidate=compared_run(candidate),
        paired_by=pairing.by,
        tasks=len(pairing.here),
        only_baseline=0 if sides is None else len(sides[0].key) - len(pairing.here),
        only_candidate=0 if sides is None else len(sides[1].key) - len(pairing.here),
        differences=differences,
        costs=costs,
        changed_by=chosen[0].name if chosen else "",
        gained=gained,
        lost=lost,
        settings=comparison.changed_settings(baseline.profile.identity or {}, candidate.profile.identity or {}),
        notes=notes_of(baseline, candidate, pairing),
    )


def default_metrics(paired: PairedRuns) -> list[Metric]:
    """Return solve rate and mean reward, without those that are undefined or equal to the solve rate."""
    runs = paired.baseline.run, paired.candidate.run
    found = []
    if all(run.solved is not None for run in runs):
        found.append(Metric(SOLVE_RATE))
        if all(np.array_equal(run.columns.reward, run.solved) for run in runs if run.solved is not None):
            return found
    return [*found, Metric(REWARD)]


def with_holm(pairs: Sequence[RunPair]) -> tuple[list[RunPair], int]:
    """Correct the p-values over all tasks and, separately, those of datasets. Also return the number of the first."""
    adjusted: dict[tuple[int, int], float] = {}
    tests = 0
    for whole in (True, False):
        places = [
            (number, index, one.p)
            for number, found in enumerate(pairs)
            for index, one in enumerate(found.differences)
            if one.p is not None and (one.dataset is None) == whole
        ]
        tests = len(places) if whole else tests
        if len(places) > 1:
            corrected = comparison.holm([p for _, _, p in places])
            adjusted |= {(number, index): p for (number, index, _), p in zip(places, corrected, strict=True)}
    changed = []
    for number, found in enumerate(pairs):
        differences = [
            one.model_copy(update={"p_holm": adjusted.get((number, index))})
            for index, one in enumerate(found.differences)
        ]
        changed.append(found.model_copy(update={"differences": differences}))
    return changed, tests


def compared_run(run: Run) -> ComparedRun:
    found = run.profile
    tasks = 0 if run.by_task is None else len(run.by_task)
    return ComparedRun(name=found.name, path=found.path, models=found.models, coverage=found.coverage, tasks=tasks)


def _costs(paired: PairedRuns, level: PairLevel) -> list[PairedDifference]:
    found = []
    for name in (*COLUMNS, SECONDS):
        runs = paired.baseline.run, paired.candidate.run
        columns = [run.columns.stages.get("total") if name == SECONDS else getattr(run.columns, name) for run in runs]
        if any(values is None or np.isnan(values).all() or not np.nansum(np.abs(values)) for values in columns):
            continue
        if (one := paired.compare(Metric(name), replace(level, effect=None))) is not None:
            untested = {"p": None, "test": "", "sign_test_p": None, "tasks_needed": None}
            # Costs that never change, such as the tokens of a prompt, are known and not estimated.
            found.append(one.model_copy(update=untested if one.better or one.worse else {**untested, "interval": None}))
    return found


def changed_tasks(paired: PairedRuns, metric: Metric, *, lower_is_better: bool) -> tuple[ChangedTasks, ChangedTasks]:
    """Return the tasks in which the candidate is better and those in which it is worse, largest change first."""
    before, after = paired.values(metric)
    change = np.nan_to_num(after - before)
    order = np.lexsort((paired.baseline.first, -np.abs(change)))
    columns, group = paired.baseline.run.columns, paired.baseline.group
    known, tasks = group >= 0, paired.baseline.tasks
    content, dataset = np.zeros(tasks, np.int64), np.full(tasks, -1, np.int64)
    content[group[known]], dataset[group[known]] = columns.content[known], columns.dataset.codes[known]

    def listed(chosen: Ints) -> ChangedTasks:
        tasks = [
            ChangedTask(
                task=int(paired.baseline.first[task]),
                task_in_candidate=int(paired.candidate.first[task]),
                key="" if content[task] == 0 else int(content[task]).to_bytes(8, signed=True).hex(),
                dataset="" if dataset[task] < 0 else columns.dataset.names[dataset[task]],
                baseline=float(before[task]),
                candidate=float(after[task]),
            )
            for task in chosen[:MAX_CHANGED].tolist()
        ]
        return ChangedTasks(total=len(chosen), tasks=tasks)

    better = -1 if lower_is_better else 1
    gains, losses = order[better * change[order] > 1e-12], order[better * change[order] < -1e-12]
    return listed(gains), listed(losses)


def notes_of(baseline: Run, candidate: Run, pairing: Pairing) -> list[str]:
    if pairing.why_not:
        return [f"Nothing to compare: {pairing.why_not}."]
    how = {
        SAME_INPUT: "index, because both manifests have the same input_sha256",
        BY_CONTENT: "content (_ng_task_key)",
        BY_PROMPT: "prompt and tools",
    }
    notes = [f"Tasks are paired by {how[pairing.by]}."]
    notes += [f"{run.profile.name}: {note}" for run in (baseline, candidate) for note in run.profile.notes]
    for run, side in zip((baseline, candidate), pairing.sides or (), strict=False):
        if run.by_task is not None and len(run.by_task) > len(side.key):
            notes.append(
                f"{run.profile.name} contains {len(run.by_task) - len(side.key):,} duplicate tasks; their rollouts "
                "count as repeats of one task."
            )
        if run.profile.coverage.missing:
            notes.append(
                f"{run.profile.coverage.missing:,} rollouts of {run.profile.name} are missing; only measured rollouts "
                "are compared."
            )
    return notes + comparison.unlike_rules(baseline, candidate)


LISTS = ("learned", "forgotten", "all")
_MAX_EXACT = 2000
"""Up to so many rollouts of a task, Fisher's test is computed."""


class TaskChange(Record):
    task: int
    task_in_second: int
    first: float
    """Solve rate, or mean reward if "solved" is undefined."""
    second: float
    rollouts: tuple[int, int]
    p: float | None
    """Of Fisher's exact test for this task alone; None with one rollout per run, or if "solved" is undefined."""


@dataclass(frozen=True)
class TaskChanges:
    """The tasks that two runs have in common. All arrays have the same length."""

    why_not: str
    """Why there are none; empty if there are some."""
    by: str = ""
    metric: str = ""
    """SOLVE_RATE or REWARD."""
    difference: PairedDifference | None = None
    only: tuple[int, int] = (0, 0)
    """Number of tasks in one run only."""
    task: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))
    values: tuple[Floats, Floats] = (np.empty(0), np.empty(0))
    measured: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of(cls, first: Run, second: Run) -> TaskChanges:
        """Pair the tasks, by content where the rows have it, and compare them as ng_compare does."""
        pairing = comparison.pair(first, second)
        # Two files of a series may have the same index for different tasks.
        sides = comparison.side_by(BY_CONTENT, first), comparison.side_by(BY_CONTENT, second)
        if sides[0] is not None and sides[1] is not None:
            pairing = comparison.matched(BY_CONTENT, sides[0], sides[1])
        if pairing.sides is None or pairing.why_not:
            return cls(pairing.why_not)
        paired = PairedRuns(*common(pairing, (first, second)))
        metric = Metric(SOLVE_RATE if first.solved is not None and second.solved is not None else REWARD)
        if metric.name == REWARD and comparison.different_scales(first, second):
            return cls("their datasets have different reward scales, and it is undefined what counts as solved")
        return cls(
            why_not="",
            by=pairing.by,
            metric=metric.name,
            difference=paired.compare(metric, PairLevel()),
            only=(len(pairing.sides[0].key) - len(pairing.here), len(pairing.sides[1].key) - len(pairing.here)),
            task=(paired.baseline.first, paired.candidate.first),
            values=paired.values(metric),
            measured=(paired.baseline.counts, paired.candidate.counts),
        )

    def listed(self, name: str) -> Ints:
        """Return the indexes of the tasks in a list, one of LISTS, largest change first."""
        change = self.values[1] - self.values[0]
        size = np.abs(change)
        order = np.lexsort((self.task[0], -np.minimum(*self.measured), -size))
        if name == "all":
            return order
        sign = 1.0 if name == "learned" else -1.0
        return order[sign * change[order] > _NOISE]

    def at(self, index: int) -> TaskChange:
        """Return the record of one task."""
        counts = int(self.measured[0][index]), int(self.measured[1][index])
        rates = float(self.values[0][index]), float(self.values[1][index])
        p = None
        if self.metric == SOLVE_RATE and min(counts) > 1 and sum(counts) <= _MAX_EXACT:
            p = fisher_exact(round(rates[0] * counts[0]), counts[0], round(rates[1] * counts[1]), counts[1])
        return TaskChange(
            task=int(self.task[0][index]),
            task_in_second=int(self.task[1][index]),
            first=rates[0],
            second=rates[1],
            rollouts=counts,
            p=p,
        )


def fisher_exact(solved_a: int, of_a: int, solved_b: int, of_b: int) -> float:
    """Return the probability, given the number of solved rollouts, of tables at most as probable as this one."""
    solved, total = solved_a + solved_b, of_a + of_b
    ways = [
        math.comb(of_a, count) * math.comb(of_b, solved - count)
        for count in range(max(0, solved - of_b), min(of_a, solved) + 1)
    ]
    own = math.comb(of_a, solved_a) * math.comb(of_b, solved_b)
    return float(sum(way for way in ways if way <= own) / math.comb(total, solved))
