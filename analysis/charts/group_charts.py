"""Draws bar charts of rollouts by finish reason and agent, of time by stage, and of failures by kind."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.bars import MAX_ROWS, Row, bars
from rollyard.analysis.charts.chart import Chart, chart, table
from rollyard.analysis.charts.labels import pluralize, seconds, share, short
from rollyard.analysis.charts.links import Links
from rollyard.analysis.metrics.failure_records import FailureKindCount
from rollyard.analysis.metrics.profile_records import Group, Stage


def ends(found: Sequence[Group], measured: int, links: Links | None = None, *, means: bool = True) -> Chart:
    """Draw the number of rollouts by finish reason. `means` adds mean rewards, which requires a common reward scale."""
    hrefs = [links.rollouts(end=group.name) if links else None for group in found]
    most = share(found[0].rollouts / (measured or 1))
    caption = f"Most frequent: {found[0].name}, {most} of rollouts."
    return _groups("ends", "Why episodes ended", "end", found, hrefs, caption, measured, means=means)


def agents(found: Sequence[Group], measured: int, links: Links | None = None) -> Chart:
    """Draw the number of rollouts by agent."""
    hrefs = [links.rollouts(agent=group.name) if links else None for group in found]
    caption = f"{pluralize(len(found), 'agent')}; {found[0].name} played the most rollouts."
    return _groups("agents", "Agents", "agent", found, hrefs, caption, measured, means=True)


def stages(found: Sequence[Stage]) -> Chart:
    """Draw the share of the episodes' time that was spent in each stage."""
    shown = [(stage, stage.share) for stage in found if stage.share is not None and stage.stage != "total"]
    rows = [Row(stage.stage, part, f"{share(part)} · {seconds(stage.seconds.mean)}") for stage, part in shown]
    caption = f"Most time is spent in {shown[0][0].stage}: {share(shown[0][1])} of the time of all rollouts."
    total = next((stage for stage in found if stage.stage == "total"), None)
    if total is not None:
        mean, longest = seconds(total.seconds.mean), seconds(total.seconds.max)
        caption += f" A rollout takes {mean} on average, at most {longest}."
    cells = [((stage.stage, share(part), seconds(stage.seconds.mean)), None) for stage, part in shown]
    drawn = bars(f"Time of an episode by stage. {caption}", rows)
    return chart("stages", "Where the time goes", drawn, caption, table(("stage", "share", "mean"), cells))


def failures(found: Sequence[FailureKindCount], links: Links | None = None) -> Chart:
    """Draw the number of failed attempts by kind."""
    hrefs = [links.rollouts(outcome="failed", end=kind.kind) if links else None for kind in found]
    rows = [
        Row(kind.kind, kind.attempts, f"{pluralize(kind.attempts, 'attempt')} · {kind.lost:,} lost", href)
        for kind, href in zip(found, hrefs, strict=True)
    ]
    attempts, lost = sum(kind.attempts for kind in found), sum(kind.lost for kind in found)
    caption = f"{pluralize(attempts, 'failed attempt')}; {pluralize(lost, 'rollout')} lost."
    cells = [
        ((kind.kind, f"{kind.attempts:,}", f"{kind.lost:,}"), href) for kind, href in zip(found, hrefs, strict=True)
    ]
    numbers = table(("kind", "attempts", "lost"), cells[:MAX_ROWS])
    return chart("failures", "What failed", bars(f"Failures by kind. {caption}", rows), caption, numbers)


def _groups(
    name: str,
    title: str,
    head: str,
    found: Sequence[Group],
    hrefs: Sequence[str | None],
    caption: str,
    measured: int,
    *,
    means: bool,
) -> Chart:
    rows, cells = [], []
    for group, href in zip(found[:MAX_ROWS], hrefs, strict=False):
        part, reward = share(group.rollouts / (measured or 1)), short(group.mean_reward)
        label = f"{group.rollouts:,} · {part}{f' · reward {reward}' if means else ''}"
        rows.append(Row(group.name, group.rollouts, label, href))
        cells.append(((group.name, f"{group.rollouts:,}", part, *((reward,) if means else ())), href))
    if len(found) > MAX_ROWS:
        caption += f" The {MAX_ROWS} most frequent of {len(found):,}."
    numbers = table((head, "rollouts", "share", *(("mean reward",) if means else ())), cells)
    return chart(name, title, bars(f"{title}. {caption}", rows), caption, numbers)
