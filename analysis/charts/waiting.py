"""Draws the number of rollouts in progress by stage."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.bars import Row, bars
from rollyard.analysis.charts.chart import Chart, chart
from rollyard.analysis.charts.labels import pluralize, seconds
from rollyard.records.activity import StageActivity


def waiting(stages: Sequence[StageActivity]) -> Chart | None:
    """Draw the chart; return None if no rollout is in progress."""
    if not stages:
        return None
    rows = [Row(f"{one.stage} at {one.server}", one.episodes, _label(one)) for one in stages]
    caption = f"{pluralize(sum(one.episodes for one in stages), 'rollout')} in progress, by stage."
    return chart("waiting", "Rollouts in progress by stage", bars(caption, rows), caption)


def _label(one: StageActivity) -> str:
    usual = "" if one.median_s is None else f" · usually {seconds(one.median_s)}"
    stuck = f" · {one.stuck:,} stuck" if one.stuck else ""
    return f"{one.episodes:,}{usual} · longest {seconds(one.slowest.stage_s)}{stuck}"
