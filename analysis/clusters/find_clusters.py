"""Finds the clusters of a run's failed rollouts, with their figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollyard.analysis.clusters.assignment import SAMPLE, Built, Progress, build_and_assign
from rollyard.analysis.clusters.centers import Assigned
from rollyard.analysis.clusters.cluster_records import Cluster, Clusters, ClusterTerm
from rollyard.analysis.clusters.failed_rollouts import Failed, failed_rollouts
from rollyard.analysis.clusters.naming import Term
from rollyard.analysis.findings.finding import Example
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.estimators import clustered_mean
from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.profile import Run

_EXAMPLES = 3
_NAME_TERMS = 3
_NAMED = 0.35
"""A term of the name must distinguish the cluster at least this much, compared with its first term."""
_BORDERLINE = 0.15
"""Similarities that differ by less are almost equal."""
_NO_CLUSTER = "The failed rollouts have no more in common than chance explains."


@dataclass(frozen=True)
class FoundClusters:
    """Clusters with their rollouts."""

    record: Clusters
    members: dict[str, Ints]
    """Byte offsets of the rollouts of each cluster, ascending, by the cluster's key."""


def clusters_of(
    run: Run,
    *,
    where: str | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    sample: int = SAMPLE,
) -> FoundClusters:
    """Read the failed rollouts of a run from its file and return their clusters.

    `where`: an expression for the rollouts that count as failed; default: those that did not solve their task. Reading
    uses up to `workers` processes. `progress` is called with the share of the work that is done. `sample`:
    maximum number of rollouts from which clusters are built; all others are then assigned to them.

    Raises OperatorError if scikit-learn is missing, `where` is not an expression, or the file cannot be read.
    """
    failed = failed_rollouts(run, where)
    built, (assigned,) = build_and_assign([failed], workers=workers, progress=progress, sample=sample)
    order, keys = ordered(built, [assigned])
    clusters = [cluster_record(key, built.terms[at], failed, assigned, at) for key, at in zip(keys, order, strict=True)]
    offsets = run.columns.offset[failed.mask]
    count = int(failed.mask.sum())
    record = Clusters(
        clusters=clusters,
        rollouts=len(run.columns),
        failed=count,
        sampled=built.sampled,
        unclustered=int((assigned.label < 0).sum()),
        rule=failed.rule,
        silhouette=built.silhouette,
        note="" if clusters else why_none(count, built),
    )
    members = {key: np.sort(offsets[assigned.label == at]) for key, at in zip(keys, order, strict=True)}
    return FoundClusters(record, members)


def ordered(built: Built, assigned: Sequence[Assigned]) -> tuple[list[int], list[str]]:
    """Return the numbers of the clusters that have rollouts, largest first, and their keys."""
    labels = np.concatenate([one.label for one in assigned])
    counts = np.bincount(labels[labels >= 0], minlength=len(built.terms))
    order = [at for at in np.argsort(-counts, kind="stable").tolist() if counts[at]]
    keys: list[str] = []
    for at in order:
        base = _key(built.terms[at]) or "cluster"
        taken = sum(key == base or re.fullmatch(rf"{re.escape(base)}-\d+", key) is not None for key in keys)
        keys.append(base if not taken else f"{base}-{taken + 1}")
    return order, keys


def why_none(failed: int, built: Built) -> str:
    """Return why there are no clusters."""
    if not failed:
        return "No rollout failed."
    least = 5
    return f"Only {failed} rollouts failed; a cluster has at least {least}." if failed < least else _NO_CLUSTER


def cluster_record(key: str, terms: Sequence[Term], failed: Failed, assigned: Assigned, number: int) -> Cluster:
    """Return the figures of cluster `number`, which must have rollouts of this run."""
    columns = failed.run.columns
    failed_at = np.flatnonzero(failed.mask)
    own = np.flatnonzero(assigned.label == number)
    places = failed_at[own]
    margin = assigned.margin[own]
    by_margin = np.argsort(margin, kind="stable").tolist()
    rewards = failed.run.profile.rewards
    comparable = rewards is not None and not rewards.why_no_mean
    return Cluster(
        key=key,
        name=name_of(terms),
        terms=[ClusterTerm(text=term.text, inside=term.inside, outside=term.outside) for term in terms],
        count=len(own),
        tasks=len(np.unique(columns.task[places])),
        share=share_of(failed.run, places),
        mean_reward=_mean(columns.reward[places], columns.task[places]) if comparable else None,
        similarity=float(assigned.similarity[own].mean()),
        typical=examples(failed.run, places[np.argsort(-assigned.similarity[own], kind="stable")]),
        borderline=examples(failed.run, places[[at for at in by_margin if margin[at] < _BORDERLINE]]),
    )


def name_of(terms: Sequence[Term]) -> str:
    """Return the name of a cluster."""
    named = [term.text for term in terms if term.score >= _NAMED * terms[0].score][:_NAME_TERMS]
    return " · ".join(named) or "no distinguishing term"


def share_of(run: Run, places: Ints) -> Estimate:
    """Return the share of the run's measured rollouts that are at `places`."""
    values = np.zeros(len(run.columns))
    values[places] = 1.0
    return _mean(values, run.columns.task, is_share=True)


def examples(run: Run, places: Ints) -> list[Example]:
    """Return the first rollouts of `places`, of different tasks if there are enough."""
    columns = run.columns
    _, first = np.unique(columns.task[places], return_index=True)
    chosen = np.sort(first)[:_EXAMPLES]
    if len(chosen) < _EXAMPLES:
        chosen = np.unique(np.concatenate([chosen, np.arange(min(_EXAMPLES, len(places)))]))[:_EXAMPLES]
    return [Example(task=int(columns.task[at]), repeat=int(columns.repeat[at])) for at in places[chosen].tolist()]


def _mean(values: Floats, tasks: Ints, *, is_share: bool = False) -> Estimate:
    return clustered_mean(values, np.flatnonzero(np.diff(tasks, prepend=-1)), is_share=is_share)


def _key(terms: Sequence[Term]) -> str:
    text = "-".join(term.text for term in terms[:2]).lower()
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")[:80].strip("-")
