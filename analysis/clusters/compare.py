"""Compares how often two runs fail in the same ways: clusters of both runs' failed rollouts together, counted in
each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.clusters.assignment import Built, Progress, build_and_assign
from rollyard.analysis.clusters.centers import Assigned
from rollyard.analysis.clusters.cluster_records import Cluster, ClusterChange, ClusterComparison
from rollyard.analysis.clusters.failed_rollouts import Failed, failed_rollouts
from rollyard.analysis.clusters.find_clusters import cluster_record, examples, ordered, share_of, why_none
from rollyard.analysis.metrics.comparison import paired
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.paired.metric import SOLVE_RATE, Metric
from rollyard.analysis.metrics.paired.task_values import GroupedRun, common
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.task_pairing import pair

_SHARE = Metric(SOLVE_RATE)
"""Any share: the mean over a task's rollouts."""


@dataclass(frozen=True)
class FoundChanges:
    """The comparison with the rollouts of each cluster."""

    record: ClusterComparison
    members: tuple[dict[str, Ints], dict[str, Ints]]
    """Byte offsets of each cluster's rollouts in each of the files, ascending, by the cluster's key."""


def changes_of(
    first: Run, second: Run, *, where: str | None = None, workers: int = 1, progress: Progress | None = None
) -> FoundChanges:
    """Cluster the failed rollouts of two runs together and compare their shares. The arguments and exceptions are those
    of `clusters_of`.
    """
    failed = failed_rollouts(first, where), failed_rollouts(second, where)
    built, assigned = build_and_assign(failed, workers=workers, progress=progress)
    order, keys = ordered(built, assigned)
    pairing = pair(first, second)
    sides = common(pairing, (first, second)) if pairing.sides is not None and not pairing.why_not else None
    changes = [
        _change(key, at, built, failed, (assigned[0], assigned[1]), sides) for key, at in zip(keys, order, strict=True)
    ]
    counts = int(failed[0].mask.sum()), int(failed[1].mask.sum())
    rules = list(dict.fromkeys(one.rule for one in failed))
    record = ClusterComparison(
        changes=sorted(changes, key=lambda one: (-abs(one.difference.mean), -sum(one.counts), one.cluster.key)),
        rollouts=(len(first.columns), len(second.columns)),
        failed=counts,
        unclustered=(int((assigned[0].label < 0).sum()), int((assigned[1].label < 0).sum())),
        paired_by=pairing.by if sides is not None else "",
        tasks=sides[0].tasks if sides is not None else 0,
        rule="; ".join(rules),
        note="" if changes else why_none(sum(counts), built),
        names=(first.profile.name, second.profile.name),
    )
    members = [
        {key: np.sort(one.run.columns.offset[one.mask][own.label == at]) for key, at in zip(keys, order, strict=True)}
        for one, own in zip(failed, assigned, strict=True)
    ]
    return FoundChanges(record, (members[0], members[1]))


def _change(
    key: str,
    number: int,
    built: Built,
    failed: tuple[Failed, Failed],
    assigned: tuple[Assigned, Assigned],
    sides: tuple[GroupedRun, GroupedRun] | None,
) -> ClusterChange:
    places = [np.flatnonzero(run.mask)[own.label == number] for run, own in zip(failed, assigned, strict=True)]
    shares = share_of(failed[0].run, places[0]), share_of(failed[1].run, places[1])
    difference = _independent(*shares) if sides is None else _paired(failed, (places[0], places[1]), sides)
    counts = len(places[0]), len(places[1])
    typical = [
        examples(run.run, own[np.argsort(-given.similarity[given.label == number], kind="stable")])
        for run, own, given in zip(failed, places, assigned, strict=True)
    ]
    shown = 1 if counts[1] else 0
    cluster: Cluster = cluster_record(key, built.terms[number], failed[shown], assigned[shown], number)
    return ClusterChange(
        cluster=cluster.model_copy(update={"count": sum(counts)}),
        counts=counts,
        shares=shares,
        difference=difference,
        state=_state(counts, difference),
        examples=(typical[0], typical[1]),
    )


def _paired(failed: tuple[Failed, Failed], places: tuple[Ints, Ints], sides: tuple[GroupedRun, GroupedRun]) -> Estimate:
    """Return the mean of the differences of the tasks that both runs have, each with the same weight."""
    values: list[Floats] = []
    for run, own, side in zip(failed, places, sides, strict=True):
        inside = np.zeros(len(run.run.columns))
        inside[own] = 1.0
        values.append(side.values(_SHARE, inside))
    return paired(values[1] - values[0], is_share=True)


def _independent(first: Estimate, second: Estimate) -> Estimate:
    """Return the difference of two independent shares, with the interval that combines theirs (Newcombe 1998,
    Statistics in Medicine 17(8), method 10).
    """
    difference = second.mean - first.mean
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Estimate(mean=difference)
    low = math.hypot(second.mean - second.low, first.high - first.mean)
    high = math.hypot(second.high - second.mean, first.mean - first.low)
    return Estimate(mean=difference, low=max(-1.0, difference - low), high=min(1.0, difference + high))


def _state(counts: tuple[int, int], difference: Estimate) -> str:
    if difference.high is not None and difference.high < 0:
        return "gone" if not counts[1] else "less"
    if difference.low is not None and difference.low > 0:
        return "new" if not counts[0] else "more"
    return "same"
