"""Draws charts that compare several runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, chart
from rollyard.analysis.charts.intervals import Interval, intervals
from rollyard.analysis.charts.labels import points, share, short, signed
from rollyard.analysis.metrics.comparison import Difference
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.profile_records import Profile

Write = Callable[[float], str]


def side_by_side(runs: Sequence[Profile]) -> list[Chart]:
    """Draw the success rates and the mean rewards of several runs, with their confidence intervals."""
    rates = [(run.name, run.solved.rate) for run in runs if run.solved is not None]
    means = [(run.name, run.rewards.mean) for run in runs if run.rewards is not None and not run.rewards.why_no_mean]
    charts = []
    for name, title, found, write, axis in (
        ("success_rates", "Success rate", rates, share, Axis("success rate", percent=True)),
        ("mean_rewards", "Mean reward", means, short, Axis("mean reward")),
    ):
        if len(found) > 1:
            rows = [_row(run, estimate, write) for run, estimate in found]
            listed = "; ".join(f"{run} {write(estimate.mean)}" for run, estimate in found)
            caption = f"{title} with 95% intervals: {listed}."
            charts.append(chart(name, title, intervals(caption, rows, axis), caption))
    return charts


def difference_charts(found: Difference) -> list[Chart]:
    """Draw the differences in solve rate and mean reward between a run and the baseline."""
    charts = []
    for name, outcome, estimate, write, axis in (
        (
            "solve_rate_difference",
            "solve rate",
            found.solve_rate,
            points,
            Axis("difference in solve rate, percentage points", points=True),
        ),
        ("reward_difference", "mean reward", found.reward, signed, Axis("difference in mean reward")),
    ):
        if estimate is not None:
            caption = (
                f"{found.name} minus {found.baseline}, {outcome}, mean over tasks: {write(estimate.mean)}"
                f"{_interval(estimate, write)}."
            )
            row = _row(f"{found.name} minus {found.baseline}", estimate, write)
            drawn = intervals(caption, [row], axis, zero=True)
            charts.append(chart(name, f"Difference in {outcome}", drawn, caption))
    return charts


def _row(name: str, found: Estimate, write: Write) -> Interval:
    label = f"{name}: {write(found.mean)}"
    return Interval(label, found.mean, found.low, found.high, f"{label}{_interval(found, write)}")


def _interval(found: Estimate, write: Write) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" (95% interval {write(found.low)} to {write(found.high)})"
