"""Draws the throughput of a collection over the last few minutes."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, chart
from rollyard.analysis.charts.labels import pluralize, short
from rollyard.analysis.charts.series import series
from rollyard.records.types import Record


class Moment(Record):
    """A run's throughput and its rollouts in progress at one moment."""

    time: float
    """Unix time in seconds."""
    rollouts_per_s: float
    in_progress: int


class _Ago(Axis):
    """A time axis in seconds relative to now, so values are at most 0."""

    def label(self, value: float, step: float) -> str:
        """Format a time relative to now: `now`, `−30 s`, `−2 min`."""
        return "now" if abs(value) < step / 1e6 else f"−{_span(-value)}"


def pace(moments: Sequence[Moment]) -> list[Chart]:
    """Draw the throughput and the rollouts in progress over time.

    `moments` must be sorted by time. Returns no charts for fewer than two moments.
    """
    if len(moments) < 2:
        return []
    now = moments[-1].time
    ago = [moment.time - now for moment in moments]
    rates = [moment.rollouts_per_s for moment in moments]
    in_progress = [float(moment.in_progress) for moment in moments]

    def describe(indexes: Sequence[int]) -> str:
        last = moments[indexes[-1]]
        when = "now" if last is moments[-1] else f"{_span(now - last.time)} ago"
        rate = f"{short(last.rollouts_per_s)} rollouts per second"
        return f"{when}: {rate}, {pluralize(last.in_progress, 'rollout')} in progress"

    x = _Ago("time")
    charts = []
    for name, title, found, axis, kind in (
        ("rate", "Rollouts per second", rates, Axis("rollouts per second"), "s0"),
        ("in_progress", "Rollouts in progress", in_progress, Axis("rollouts", integers=True), "s1"),
    ):
        current, most = short(found[-1]), short(max(found))
        caption = f"{title} over the last {_span(now - moments[0].time)}: now {current}, at most {most}."
        svg = series(caption, ago, found, x, axis, describe, kind=kind, height=90.0)
        charts.append(chart(name, title, svg, caption))
    return charts


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if abs(minutes - round(minutes)) < 0.02 else f"{minutes:.1f} min"
