"""Groups failed rollouts by what they do wrong: `failure_clusters`, and `compare_failures` for two files."""

from __future__ import annotations

from pathlib import Path

from rollyard.analysis.clusters.cluster_records import ClusterComparison, Clusters
from rollyard.analysis.clusters.compare import changes_of
from rollyard.analysis.clusters.find_clusters import clusters_of
from rollyard.analysis.metrics.loader.load_run import load
from rollyard.arguments import PATH, TEXT, check


def failure_clusters(path: str | Path, *, where: str | None = None, pass_threshold: float | None = None) -> Clusters:
    """Return the clusters of the failed rollouts of a file, largest first, as `ng_reward_profile +clusters=true` does.

    `where`: an expression for the rollouts that count as failed, such as `reward < 0.5`; default: those that did not
    solve their task, for which `pass_threshold` is the minimum reward that counts as solved. Needs scikit-learn (the
    extra `clusters`).

    Raises RunError if the file is not a rollout file, and OperatorError if it does not exist, scikit-learn is missing,
    or `where` is not an expression.
    """
    check("path", path, PATH)
    check("where", where, TEXT, optional=True)
    return clusters_of(load(Path(path), pass_threshold=pass_threshold), where=where).record


def compare_failures(
    first: str | Path, second: str | Path, *, where: str | None = None, pass_threshold: float | None = None
) -> ClusterComparison:
    """Cluster the failed rollouts of two files together, and return how often each cluster occurs in both, largest
    change first. The arguments and exceptions are those of `failure_clusters`.
    """
    check("first", first, PATH)
    check("second", second, PATH)
    check("where", where, TEXT, optional=True)
    runs = [load(Path(path), pass_threshold=pass_threshold) for path in (first, second)]
    return changes_of(runs[0], runs[1], where=where).record
