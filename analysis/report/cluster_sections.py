"""Builds the sections about clusters of failed rollouts, of one run and of the changes between two."""

from __future__ import annotations

from rollyard.analysis.charts.labels import pluralize
from rollyard.analysis.clusters.cluster_records import Cluster, ClusterComparison, Clusters
from rollyard.analysis.findings.finding import Example
from rollyard.analysis.report.formatting import interval, percent, points, reward
from rollyard.analysis.report.section import Link, Section, Table
from rollyard.analysis.report.viewer_links import ViewerLinks

_UNFOLDED = 6
"""With more clusters, the paragraphs about them are folded. The table contains all of them."""
_HOW = (
    "Failed rollouts that do the same thing wrong, grouped by what they did, called and answered, and by the reasons "
    "of the verdict. No model is involved: see docs/viewer.md."
)


def clusters_section(found: Clusters, run: int, viewer: ViewerLinks) -> Section:
    """Return the section of one run, with links if there is a viewer."""
    counted = f"{pluralize(found.failed, 'rollout')} of {found.rollouts:,} failed ({found.rule})."
    if not found.clusters:
        return Section("Clusters of failures", [f"{counted} {found.note}"])
    sampled = f" They were built from {found.sampled:,} of them." if found.sampled < found.failed else ""
    text = f"{counted} {found.unclustered:,} of them belong to no cluster.{sampled}"
    is_folded = len(found.clusters) > _UNFOLDED
    parts = [_paragraph(one, run, viewer, is_folded) for one in found.clusters]
    return Section("Clusters of failures", [_HOW, text], [_table(found)], parts=parts)


def changes_section(found: ClusterComparison) -> Section:
    """Return the section about the changes from the first run to the second."""
    title = f"Clusters of failures: {found.names[1]} against {found.names[0]}"
    if not found.changes:
        return Section(title, [found.note])
    how = (
        f"Differences are means over the {found.tasks:,} tasks of both runs, each with the same weight."
        if found.paired_by
        else "The tasks cannot be paired, so that the runs count as independent samples."
    )
    rows = [
        (
            one.cluster.name,
            one.state,
            *(f"{count:,} ({percent(share.mean, 1)})" for count, share in zip(one.counts, one.shares, strict=True)),
            f"{points(one.difference.mean)} points",
            interval(one.difference, "points"),
        )
        for one in found.changes
    ]
    head = ("cluster", "change", *found.names, "difference", "95% interval")
    text = f"Clusters of the failed rollouts of both runs, largest change first. {how}"
    return Section(title, [text], [Table(head, rows)])


def _table(found: Clusters) -> Table:
    rows = [
        (
            one.name,
            f"{one.count:,}",
            percent(one.share.mean, 1),
            interval(one.share, "percent"),
            reward(None if one.mean_reward is None else one.mean_reward.mean),
            f"{one.tasks:,}",
        )
        for one in found.clusters
    ]
    return Table(("cluster", "rollouts", "share of all", "95% interval", "mean reward", "tasks"), rows)


def _paragraph(one: Cluster, run: int, viewer: ViewerLinks, is_folded: bool) -> Section:
    terms = "; ".join(f"{term.text} ({term.inside:.0%}, others {term.outside:.0%})" for term in one.terms)
    text = [f"{pluralize(one.count, 'rollout')}: {terms}."]
    groups = (("Typical", one.typical), ("Borderline", one.borderline))
    if not viewer:
        text += [f"{name}: {_named(own)}." for name, own in groups if own]
        return Section(one.name, text, is_folded=is_folded)
    links = [
        Link(f"{name.lower()}: {_named([example])}", viewer.rollout(run, example.task, example.repeat))
        for name, own in groups
        for example in own
    ]
    if address := viewer.cluster(run, one.key):
        links.append(Link(f"all {one.count:,}", address))
    return Section(one.name, text, links=links, is_folded=is_folded)


def _named(own: list[Example]) -> str:
    return "; ".join(f"task {example.task}, repeat {example.repeat}" for example in own)
