"""Builds the report's first section: what stands out in the run, most important first."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.charts import Chart, DrawnInterval, chart, intervals
from rollyard.analysis.charts.svg import Axis, share
from rollyard.analysis.findings.detector import Finding, Findings
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.report.formatting import NOTHING, ViewerLinks, interval, percent
from rollyard.analysis.report.sections import Link, Section, Table, mean_cells
from rollyard.records.terminal import pluralize

_MOST = 8
"""Maximum number of findings with a paragraph. The table contains all of them."""


def findings_section(found: Findings, run: int, viewer: ViewerLinks) -> Section:
    """Return the section, with links in its paragraphs if there is a viewer."""
    if not found.findings:
        text = f"Nothing stands out in {pluralize(found.rollouts, 'rollout')}."
        return Section("Findings", [text, _CAUTION] if found.rollouts else [])
    parts = [_paragraph(one, run, viewer) for one in found.findings[:_MOST]]
    return Section("Findings", [_CAUTION], [_table(found.findings)], _charts(found.findings), parts)


def compared_findings(runs: Sequence[Profile], found: Sequence[Findings | None], viewer: ViewerLinks) -> list[Section]:
    """Return a section with the findings of several runs side by side; empty if there are none."""
    each = [{one.kind: one for one in findings.findings} if findings else {} for findings in found]
    most = {kind: max(one[kind].stake for one in each if kind in one) for one in each for kind in one}
    kinds = sorted(most, key=lambda kind: (-most[kind], kind))[:_MOST]
    if not kinds:
        return []
    titles = {kind: one[kind].title for one in each for kind in one}
    rows = [(titles[kind], *(cell for one in each for cell in _compared_cells(one.get(kind)))) for kind in kinds]
    head = ("finding", *(cell for run in runs for cell in (run.name, "95% interval")))
    links = [Link(f"findings of {run.name}", viewer.findings(at)) for at, run in enumerate(runs)]
    caption = "Shares of the rollouts, or of the attempts"
    if more := len(most) - len(kinds):
        caption += f"; {more} more in the runs' own sections"
    return [Section("Findings", [], [Table(head, rows, caption)], links=links if viewer and not viewer.where else [])]


def _compared_cells(one: Finding | None) -> tuple[str, str]:
    if one is None:
        return NOTHING, NOTHING
    return f"{percent(one.share.mean, 1)} ({one.count:,} / {one.of:,})", interval(one.share, "share")


_CAUTION = (
    "Findings are observations that deserve a look, most important first. profile.json contains "
    "what each one counts, with its thresholds. Counts are of measured rollouts unless they are of attempts."
)


def _paragraph(one: Finding, run: int, viewer: ViewerLinks) -> Section:
    where = [
        Link(f"task {example.task}, repeat {example.repeat}", viewer.rollout(run, example.task, example.repeat))
        for example in one.examples
    ]
    if viewer and (address := viewer.finding(run, one.kind, one.filters)):
        where.append(Link(f"all {one.count:,}", address))
    if not viewer:
        named = "; ".join(link.text for link in where)
        return Section(one.title, [one.sentence, f"Examples: {named}."] if named else [one.sentence])
    return Section(one.title, [one.sentence], links=where)


def _table(found: Sequence[Finding]) -> Table:
    rows = [
        (
            *(one.title, f"{one.count:,} / {one.of:,}", *mean_cells(one.share, "share")),
            *(*mean_cells(one.mean_reward, "reward"), f"{one.tasks:,}", percent(one.stake, 1)),
        )
        for one in found
    ]
    head = ("finding", "count", "share", "95% interval", "mean reward", "95% interval", "tasks", "reward concerned")
    return Table(head, rows)


def _charts(found: Sequence[Finding]) -> list[Chart]:
    rows = [
        DrawnInterval(f"{one.title}: {share(of.mean)}", of.mean, of.low, of.high, one.sentence)
        for one in found[:_MOST]
        for of in (one.share,)
    ]
    caption = "Share of the rollouts that each finding concerns, with 95% intervals clustered by task."
    return [chart("findings", "Findings", intervals(caption, rows, Axis("share", percent=True), zero=True), caption)]
