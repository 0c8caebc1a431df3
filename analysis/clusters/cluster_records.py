"""Defines the records of clusters. All texts are plain and may contain text from rollouts; renderers must escape
them.
"""

from __future__ import annotations

from pydantic import Field

from rollyard.analysis.findings.finding import Example
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.records.types import Record


class ClusterTerm(Record):
    """A term that distinguishes a cluster from all other rollouts."""

    text: str
    inside: float
    """Share of the cluster's rollouts that have it."""
    outside: float
    """Share of all other rollouts that have it."""


class Cluster(Record):
    """Failed rollouts that do the same thing wrong."""

    key: str
    """Identifies the cluster within the result, made from its terms, such as `loop-same-call-ended-max-steps`."""
    name: str
    """The most distinguishing terms."""
    terms: list[ClusterTerm]
    count: int
    tasks: int
    """Number of tasks to which its rollouts belong."""
    share: Estimate
    """Share of the measured rollouts, with its 95% interval, clustered by task."""
    mean_reward: Estimate | None
    """None if the rewards of different datasets cannot be compared."""
    similarity: float
    """Mean similarity of its rollouts to all of its rollouts, from 0 to 1."""
    typical: list[Example]
    """Up to three rollouts of different tasks that are closest to its centre."""
    borderline: list[Example]
    """Up to three rollouts that resemble another cluster almost as much."""


class Clusters(Record):
    """The clusters of a run's failed rollouts, largest first."""

    clusters: list[Cluster]
    rollouts: int
    """Number of measured rollouts."""
    failed: int
    """Number of them that failed, all of which were compared with the clusters."""
    sampled: int
    """Number of failed rollouts from which the clusters were built."""
    unclustered: int
    """Number of failed rollouts that belong to no cluster."""
    rule: str
    """Which rollouts count as failed."""
    silhouette: float | None = None
    """How distinct the clusters are, from -1 to 1; None if there are fewer than two."""
    note: str = ""
    """Why there are no clusters; empty if there are some."""


class ClusterChange(Record):
    """A cluster of the failed rollouts of two runs, with its counts in each."""

    cluster: Cluster
    """Its rollouts in both runs; `share` and `tasks` are those of the second run, or of the first if it has none
    there."""
    counts: tuple[int, int]
    shares: tuple[Estimate, Estimate]
    difference: Estimate
    """Share in the second run minus share in the first, with its 95% interval."""
    state: str
    """`gone`, `less`, `same`, `more` or `new`: `gone` and `new` if only one run has it; `less` and `more` if the
    interval excludes zero."""
    examples: tuple[list[Example], list[Example]]
    """Typical rollouts in each run."""


class ClusterComparison(Record):
    """How often two runs fail in the same ways, largest change first."""

    changes: list[ClusterChange]
    rollouts: tuple[int, int]
    failed: tuple[int, int]
    unclustered: tuple[int, int]
    paired_by: str = ""
    """How tasks are paired, as in a comparison; empty if they are not, so that the runs count as independent."""
    tasks: int = 0
    """Number of common tasks; 0 if the tasks are not paired."""
    rule: str = ""
    note: str = ""
    names: tuple[str, str] = ("", "")


class ClusterReport(Record):
    """The clusters of a report's runs; empty if they were not computed."""

    runs: list[Clusters] = Field(default_factory=list)
    changes: list[ClusterComparison] = Field(default_factory=list)
    """Of each later run against the first."""
