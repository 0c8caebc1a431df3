"""The charts of runs: of a profile, of several profiles, of a running collection, and of one rollout's tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from rollyard.analysis.charts.charts import (
    MAX_ROWS,
    Bar,
    Chart,
    ChartLink,
    ChartRow,
    DrawnInterval,
    Line,
    Point,
    bars,
    chart,
    histogram,
    intervals,
    lines,
    series,
    table,
)
from rollyard.analysis.charts.svg import Axis, Links, points, seconds, share, short, signed
from rollyard.analysis.metrics import profile_records as records
from rollyard.analysis.metrics.comparison import Difference
from rollyard.analysis.metrics.estimators import Estimate
from rollyard.records.activity import StageActivity
from rollyard.records.terminal import pluralize
from rollyard.records.types import Record


def ends(found: Sequence[records.Group], measured: int, links: Links | None = None, *, means: bool = True) -> Chart:
    """Draw the number of rollouts by finish reason. `means` adds mean rewards, which requires a common reward scale."""
    hrefs = [links.rollouts(end=group.name) if links else None for group in found]
    most = share(found[0].rollouts / (measured or 1))
    caption = f"Most frequent: {found[0].name}, {most} of rollouts."
    return _groups("ends", "Why episodes ended", "end", found, hrefs, caption, measured, means=means)


def agents(found: Sequence[records.Group], measured: int, links: Links | None = None) -> Chart:
    hrefs = [links.rollouts(agent=group.name) if links else None for group in found]
    caption = f"{pluralize(len(found), 'agent')}; {found[0].name} played the most rollouts."
    return _groups("agents", "Agents", "agent", found, hrefs, caption, measured, means=True)


def stages(found: Sequence[records.Stage]) -> Chart:
    """Draw the share of the episodes' time that was spent in each stage."""
    shown = [(stage, stage.share) for stage in found if stage.share is not None and stage.stage != "total"]
    rows = [ChartRow(stage.stage, part, f"{share(part)} · {seconds(stage.seconds.mean)}") for stage, part in shown]
    caption = f"Most time is spent in {shown[0][0].stage}: {share(shown[0][1])} of the time of all rollouts."
    for total in [stage.seconds for stage in found if stage.stage == "total"]:
        caption += f" A rollout takes {seconds(total.mean)} on average, at most {seconds(total.max)}."
    cells = [((stage.stage, share(part), seconds(stage.seconds.mean)), None) for stage, part in shown]
    drawn = bars(f"Time of an episode by stage. {caption}", rows)
    return chart("stages", "Where the time goes", drawn, caption, table(("stage", "share", "mean"), cells))


def failures(found: Sequence[records.FailureKindCount], links: Links | None = None) -> Chart:
    rows, cells = [], []
    for kind in found:
        href = links.rollouts(outcome="failed", end=kind.kind) if links else None
        label = f"{pluralize(kind.attempts, 'attempt')} · {kind.lost:,} lost"
        rows.append(ChartRow(kind.kind, kind.attempts, label, href))
        cells.append(((kind.kind, f"{kind.attempts:,}", f"{kind.lost:,}"), href))
    attempts, lost = sum(kind.attempts for kind in found), sum(kind.lost for kind in found)
    caption = f"{pluralize(attempts, 'failed attempt')}; {pluralize(lost, 'rollout')} lost."
    numbers = table(("kind", "attempts", "lost"), cells[:MAX_ROWS])
    return chart("failures", "What failed", bars(f"Failures by kind. {caption}", rows), caption, numbers)


def _groups(
    name: str,
    title: str,
    head: str,
    found: Sequence[records.Group],
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
        rows.append(ChartRow(group.name, group.rollouts, label, href))
        cells.append(((group.name, f"{group.rollouts:,}", part, *((reward,) if means else ())), href))
    if len(found) > MAX_ROWS:
        caption += f" The {MAX_ROWS} most frequent of {len(found):,}."
    numbers = table((head, "rollouts", "share", *(("mean reward",) if means else ())), cells)
    return chart(name, title, bars(f"{title}. {caption}", rows), caption, numbers)


_ROLLOUTS = Axis("rollouts", integers=True)
_MAX_BARS = 60
_MAX_LINKS = 8
_SAME = 1e-9
"""Rewards that differ by less than this are considered equal, both in the histogram and in the list's filter."""


def profile_charts(profile: records.Profile, links: Links | None = None) -> list[Chart]:
    found, tasks, calls = profile.rewards, profile.tasks, profile.tool_calls
    one_scale = found is None or not found.why_no_mean
    charts = [rewards(found, links)] if found else []
    if tasks and tasks.solve_rates:
        charts.append(solve_rates(tasks, links))
    if tasks and len(tasks.pass_at) > 1:
        charts.append(pass_at(tasks))
    if calls and one_scale:
        charts.append(by_calls(calls, links))
    measured = profile.coverage.measured
    if profile.ends:
        charts.append(ends(profile.ends, measured, links, means=one_scale))
    if len(profile.by_agent) > 1:
        charts.append(agents(profile.by_agent, measured, links))
    if any(stage.share is not None and stage.stage != "total" for stage in profile.stages):
        charts.append(stages(profile.stages))
    if profile.failures.kinds:
        charts.append(failures(profile.failures.kinds, links))
    return charts


def rewards(found: records.Rewards, links: Links | None = None) -> Chart:
    bars, rows = [], []
    for one in found.histogram:
        name = short(one.low) if one.low == one.high else f"{short(one.low)} to {short(one.high)}"
        # Every bar except the last excludes its upper bound.
        high = one.high if one is found.histogram[-1] or one.low == one.high else one.high - 2 * _SAME
        href = links.rollouts(min_reward=one.low, max_reward=high) if links else None
        bars.append(Bar(one.low, one.high, one.rollouts, f"{name}: {pluralize(one.rollouts, 'rollout')}", href))
        rows.append(((name, f"{one.rollouts:,}"), href))
    most_frequent = found.most_frequent[0]
    caption = f"Rewards from {short(found.min)} to {short(found.max)}"
    if most_frequent.rollouts > 1:
        caption += f"; the most frequent is {short(most_frequent.reward)} ({most_frequent.rollouts:,} times)"
    caption += "."
    drawn = histogram(caption, bars, Axis("reward"), _ROLLOUTS)
    return chart("rewards", "Rewards", drawn, caption, table(("reward", "rollouts"), rows))


def by_calls(found: records.ToolCalls, links: Links | None = None) -> Chart:
    """Draw the mean reward by number of tool calls, or by ranges of them."""
    size = -(-len(found.by_count) // _MAX_BARS)
    bars, rows, best = [], [], (-math.inf, "")
    for start in range(0, len(found.by_count), size):
        group = found.by_count[start : start + size]
        low, high, rollouts = group[0].tool_calls, group[-1].tool_calls, sum(one.rollouts for one in group)
        mean = sum(one.mean_reward * (one.rollouts / rollouts) for one in group)
        counts = [one.solved for one in group if one.solved is not None]
        name, counted = f"{low:,}" if low == high else f"{low:,} to {high:,}", pluralize(rollouts, "rollout")
        href = links.rollouts(min_tool_calls=low, max_tool_calls=high) if links else None
        tip = f"{name} tool call{'' if name == '1' else 's'}: mean reward {short(mean)}, {counted}"
        bars.append(Bar(low, low if size == 1 else high + 1, mean, tip, href))
        rows.append(((name, f"{rollouts:,}", short(mean), f"{sum(counts):,}" if counts else "–"), href))
        if mean > best[0]:
            best = mean, f"the highest is {short(mean)}, for {counted} with {name} calls"
    caption = f"Mean reward by number of tool calls; {best[1]}."
    numbers = table(("tool calls", "rollouts", "mean reward", "solved"), rows)
    drawn = histogram(caption, bars, Axis("tool calls", integers=True), Axis("mean reward"))
    return chart("by_calls", "Reward by tool calls", drawn, caption, numbers)


def solve_rates(found: records.Tasks, links: Links | None = None) -> Chart:
    bars = [
        Bar(one.low, one.high, one.tasks, f"Solved {one.label}: {pluralize(one.tasks, 'task')}")
        for one in found.solve_rates
    ]
    if any(one.low != one.high for one in found.solve_rates):
        # `none` and `all` have separate positions next to the tenths.
        bars[0] = Bar(-0.1, -0.02, bars[0].value, bars[0].tip)
        bars[-1] = Bar(1.02, 1.1, bars[-1].value, bars[-1].tip)
    caption = (
        f"{found.never_solved:,} of {pluralize(found.tasks, 'task')} never solved, {found.always_solved:,} always."
    )
    never = found.never_solved_first[:_MAX_LINKS] if links else []
    leads = [ChartLink(text=str(task), href=links.task(task)) for task in never] if links else []
    label = f"Tasks by the share of their rollouts that solved them; {caption}"
    across = Axis("share of a task's rollouts that solved it", percent=True)
    drawn = histogram(label, bars, across, Axis("tasks", integers=True), (0.0, 0.25, 0.5, 0.75, 1.0))
    rows = [((one.label, f"{one.tasks:,}"), None) for one in found.solve_rates]
    if leads:
        caption += " Never:"
    numbers = table(("solved", "tasks"), rows)
    return chart("solve_rates", "Tasks by how often they are solved", drawn, caption, numbers, leads)


def pass_at(found: records.Tasks) -> Chart:
    """Draw pass@k, pass^k and, if it is defined, cons@k as functions of k."""

    def curve(name: str, figures: Iterable[tuple[records.PassAtK, Estimate | None]]) -> list[Point]:
        return [
            Point(at.k, one.mean, one.low, one.high, f"{name}{at.k}: {share(one.mean)}, {pluralize(at.tasks, 'task')}")
            for at, one in figures
            if one is not None
        ]

    last = found.pass_at[-1]
    over = (
        pluralize(last.tasks, "task")
        if last.tasks == found.tasks
        else f"the {last.tasks:,} of {found.tasks:,} tasks with {last.k} rollouts"
    )
    caption = (
        f"At k = {last.k}, at least one of k rollouts solves {share(last.any.mean)} of {over}, and all k solve "
        f"{share(last.every.mean)}. Bands are 95% intervals."
    )
    drawn = [
        Line("pass@k: any of k", curve("pass@", ((at, at.any) for at in found.pass_at))),
        Line("pass^k: all of k", curve("pass^", ((at, at.every) for at in found.pass_at))),
    ]
    voted = curve("cons@", ((at, at.consensus) for at in found.pass_at))
    title = "pass@k and pass^k"
    head: tuple[str, ...] = ("k", "pass@k", "pass^k", "tasks")
    if voted:
        drawn.append(Line("cons@k: most of k", voted))
        title, head = "pass@k, pass^k and cons@k", ("k", "pass@k", "pass^k", "cons@k", "tasks")
        caption += f" At k = {int(voted[-1].x)}, the most common answer is right in {share(voted[-1].y)} of the tasks."
    rows = [
        ((str(at.k), share(at.any.mean), share(at.every.mean), *(consensus if voted else ()), f"{at.tasks:,}"), None)
        for at in found.pass_at
        for consensus in ((share(at.consensus.mean) if at.consensus else "–",),)
    ]
    svg = lines(caption, drawn, Axis("k", integers=True), Axis("share of tasks", percent=True))
    return chart("pass_at", title, svg, caption, table(head, rows))


Write = Callable[[float], str]


def side_by_side(runs: Sequence[records.Profile]) -> list[Chart]:
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
    charts, name = [], f"{found.name} minus {found.baseline}"
    percentage_points = Axis("difference in solve rate, percentage points", points=True)
    for kind, outcome, estimate, write, axis in (
        ("solve_rate_difference", "solve rate", found.solve_rate, points, percentage_points),
        ("reward_difference", "mean reward", found.reward, signed, Axis("difference in mean reward")),
    ):
        if estimate is not None:
            row = _row(name, estimate, write)
            caption = f"{name}, {outcome}, mean over tasks: {row.tip.removeprefix(f'{name}: ')}."
            drawn = intervals(caption, [row], axis, zero=True)
            charts.append(chart(kind, f"Difference in {outcome}", drawn, caption))
    return charts


def _row(name: str, found: Estimate, write: Write) -> DrawnInterval:
    label, reach = f"{name}: {write(found.mean)}", ""
    if found.low is not None and found.high is not None:
        reach = f" (95% interval {write(found.low)} to {write(found.high)})"
    return DrawnInterval(label, found.mean, found.low, found.high, f"{label}{reach}")


class Moment(Record):
    time: float
    """Unix time."""
    rollouts_per_s: float
    in_progress: int


class _Ago(Axis):
    """A time axis in seconds relative to now, so values are at most 0."""

    def label(self, value: float, step: float) -> str:
        """Format a time relative to now: `now`, `−30 s`, `−2 min`."""
        return "now" if abs(value) < step / 1e6 else f"−{_span(-value)}"


def pace(moments: Sequence[Moment]) -> list[Chart]:
    """Draw the throughput and the rollouts in progress over time. There must be two moments, in order."""
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


def waiting(stages: Sequence[StageActivity]) -> Chart | None:
    """Draw the chart; return None if no rollout is in progress."""
    if not stages:
        return None
    rows = []
    for one in stages:
        usual = "" if one.median_s is None else f" · usually {seconds(one.median_s)}"
        stuck = f" · {one.stuck:,} stuck" if one.stuck else ""
        label = f"{one.episodes:,}{usual} · longest {seconds(one.slowest.stage_s)}{stuck}"
        rows.append(ChartRow(f"{one.stage} at {one.server}", one.episodes, label))
    caption = f"{pluralize(sum(one.episodes for one in stages), 'rollout')} in progress, by stage."
    return chart("waiting", "Rollouts in progress by stage", bars(caption, rows), caption)


_MAX_POINTS = 3000
"""Maximum number of tokens drawn as separate points; longer episodes are drawn as a line."""


def log_probs(found: Sequence[float]) -> Chart | None:
    """Draw the log-probabilities; return None for fewer than two tokens."""
    if len(found) < 2:
        return None

    def describe(indexes: Sequence[int]) -> str:
        first, last = indexes[0], indexes[-1]
        if first == last:
            # Rounding can make a log-probability slightly positive.
            likely = share(math.exp(min(found[first], 0.0)))
            return f"token {first:,}: log-probability {short(found[first])}, {likely}"
        lowest = min(found[index] for index in indexes)
        mean = sum(found[index] for index in indexes) / len(indexes)
        return f"tokens {first:,} to {last:,}: lowest log-probability {short(lowest)}, mean {short(mean)}"

    caption = "Log-probability of every generated token, in order."
    label = f"{caption} {len(found):,} tokens, mean {short(sum(found) / len(found))}, lowest {short(min(found))}."
    positions = [float(index) for index in range(len(found))]
    x, y = Axis("generated token", integers=True), Axis("log-probability")
    svg = series(label, positions, found, x, y, describe, points=len(found) <= _MAX_POINTS)
    return chart("log_probs", "Log-probabilities", svg, caption)
