"""Chooses the test and the interval for the difference of two runs in one metric."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.metrics.estimators import mean, sign_test
from rollyard.analysis.metrics.loader.columns import Floats
from rollyard.analysis.metrics.paired.bootstrap import RESAMPLES, bootstrap
from rollyard.analysis.metrics.paired.mcnemar import McNemar, mcnemar, tango_interval
from rollyard.analysis.metrics.paired.metric import Metric
from rollyard.analysis.metrics.paired.power import detectable_effect, tasks_needed
from rollyard.analysis.metrics.paired.records import Interval, PairedDifference
from rollyard.analysis.metrics.paired.student_t import quantile, two_sided_p
from rollyard.analysis.metrics.solved import Flags
from rollyard.records.scores.confidence_intervals import share_bounds

MCNEMAR = "McNemar's exact test"
BOOTSTRAP = "paired bootstrap over tasks and paired t test, the larger p-value"
SIGN_TEST = "sign test, as all tasks changed equally"
INTERVAL = "paired bootstrap over tasks (BCa), at least the paired t interval"
SHARE_INTERVAL = f"{INTERVAL} and Agresti and Min's adjustment of it"
_NOISE = 1e-12


@dataclass(frozen=True)
class Level:
    """Settings of tests and intervals."""

    alpha: float = 0.05
    """Probability that an interval misses the true difference: half of it on each side."""
    effect: float | None = None
    """The difference for which the number of needed tasks is computed."""
    seed: int = 0
    resamples: int = RESAMPLES


def difference(
    metric: Metric,
    before: Floats,
    after: Floats,
    level: Level,
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
    span = 1.0 if metric.is_share else span
    table = _table(metric, before, after) if single or metric.k is not None else None
    deviation = math.sqrt(math.fsum(((change - center) ** 2).tolist()) / (tasks - 1)) if tasks > 1 else 0.0
    if tasks > 1 and float(np.ptp(change)) <= _NOISE * scale:
        deviation = 0.0
    detectable = detectable_effect(deviation, tasks, level.alpha)
    interval, p, test = _test(metric, change, center, deviation, table, span, level)
    signed = change if equal_counts is None else change[equal_counts]
    return PairedDifference(
        metric=metric.name,
        dataset=dataset,
        tasks=tasks,
        baseline=mean(before),
        candidate=mean(after),
        difference=center,
        interval=interval,
        t_interval=_t_interval(center, deviation, tasks, level.alpha),
        test=test,
        p=p,
        mcnemar=table,
        sign_test_p=sign_test(int((signed > 0).sum()), int((signed < 0).sum())),
        better=better,
        worse=worse,
        equal=tasks - better - worse,
        detectable_effect=detectable if detectable and not (metric.is_share and detectable > 1) else None,
        tasks_needed=None if level.effect is None else tasks_needed(deviation, level.effect, level.alpha),
    )


def _table(metric: Metric, before: Floats, after: Floats) -> McNemar | None:
    """Return the table of outcomes; None if the metric is not binary."""
    both = np.concatenate([before, after])
    if not np.isin(both, (0.0, 1.0)).all() or not (metric.is_share or len(np.unique(both)) == 2):
        return None
    return mcnemar(
        both=int((before * after).sum()),
        gained=int(((1 - before) * after).sum()),
        lost=int((before * (1 - after)).sum()),
        neither=int(((1 - before) * (1 - after)).sum()),
    )


def _test(
    metric: Metric,
    change: Floats,
    center: float,
    deviation: float,
    table: McNemar | None,
    span: float | None,
    level: Level,
) -> tuple[Interval | None, float | None, str]:
    """Return the interval, the p-value and the name of the test."""
    tasks, alpha = len(change), level.alpha
    if table is not None:
        low, high = tango_interval(table.gained, table.lost, tasks, alpha)
        return Interval(low=low, high=high, method="Tango's score interval"), table.exact_p, MCNEMAR
    if deviation == 0:
        bounds = _unvarying(center, tasks, span, alpha)
        method = "bound from the number of tasks, as all changed equally"
        interval = None if bounds is None else Interval(low=bounds[0], high=bounds[1], method=method)
        return (interval, 1.0, BOOTSTRAP) if center == 0 else (interval, min(1.0, 2.0 ** (1 - tasks)), SIGN_TEST)
    found = bootstrap(change, alpha, level.seed, level.resamples)
    t = quantile(alpha, tasks - 1)
    reach = t * deviation / math.sqrt(tasks)
    p_t = two_sided_p(center / deviation * math.sqrt(tasks), tasks - 1)
    low, high = min(found.low, center - reach), max(found.high, center + reach)
    if metric.is_share:
        bounds = _adjusted(change, t)
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


def _t_interval(center: float, deviation: float, tasks: int, alpha: float) -> Interval | None:
    if deviation == 0:
        return None
    reach = quantile(alpha, tasks - 1) * deviation / math.sqrt(tasks)
    return Interval(low=center - reach, high=center + reach, method="paired t interval")


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
