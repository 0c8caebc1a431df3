"""Draws the charts of one run's profile."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts.axis import Axis
from rollyard.analysis.charts.chart import Chart, ChartLink, chart, table
from rollyard.analysis.charts.group_charts import agents, ends, failures, stages
from rollyard.analysis.charts.histogram import Bar, histogram
from rollyard.analysis.charts.labels import pluralize, share, short
from rollyard.analysis.charts.line_plot import Line, Point, lines
from rollyard.analysis.charts.links import Links
from rollyard.analysis.metrics.profile_records import Bin, ByCalls, Profile, Rewards, Tasks, ToolCalls

_ROLLOUTS = Axis("rollouts", integers=True)
_MAX_BARS = 60
_MAX_LINKS = 8
_SAME = 1e-9
"""Rewards that differ by less than this are considered equal, both in the histogram and in the list's filter."""


def profile_charts(profile: Profile, links: Links | None = None) -> list[Chart]:
    """Draw every chart for which the run has data."""
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


def rewards(found: Rewards, links: Links | None = None) -> Chart:
    """Draw the distribution of rewards."""
    last = found.histogram[-1]
    hrefs = [_with_reward(one, links, last=one is last) for one in found.histogram]
    ranges = [
        short(one.low) if one.low == one.high else f"{short(one.low)} to {short(one.high)}" for one in found.histogram
    ]
    bars = [
        Bar(one.low, one.high, one.rollouts, f"{name}: {pluralize(one.rollouts, 'rollout')}", href)
        for one, name, href in zip(found.histogram, ranges, hrefs, strict=True)
    ]
    most_frequent = found.most_frequent[0]
    caption = f"Rewards from {short(found.min)} to {short(found.max)}"
    if most_frequent.rollouts > 1:
        caption += f"; the most frequent is {short(most_frequent.reward)} ({most_frequent.rollouts:,} times)"
    caption += "."
    rows = [((name, f"{one.rollouts:,}"), href) for one, name, href in zip(found.histogram, ranges, hrefs, strict=True)]
    drawn = histogram(caption, bars, Axis("reward"), _ROLLOUTS)
    return chart("rewards", "Rewards", drawn, caption, table(("reward", "rollouts"), rows))


def by_calls(found: ToolCalls, links: Links | None = None) -> Chart:
    """Draw the mean reward by number of tool calls. If there are too many distinct numbers, they are grouped into
    ranges.
    """
    size = -(-len(found.by_count) // _MAX_BARS)
    starts = range(0, len(found.by_count), size)
    groups = [_joined(found.by_count[start : start + size]) for start in starts]
    hrefs = [
        links.rollouts(min_tool_calls=low, max_tool_calls=high) if links else None for low, high, _, _, _ in groups
    ]
    names = [f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high, _, _, _ in groups]
    bars = [
        Bar(
            *(low, low if size == 1 else high + 1, mean),
            f"{name} tool call{'' if name == '1' else 's'}: mean reward {short(mean)}, "
            f"{pluralize(rollouts, 'rollout')}",
            href,
        )
        for (low, high, rollouts, mean, _), name, href in zip(groups, names, hrefs, strict=True)
    ]
    best = max(range(len(groups)), key=lambda index: groups[index][3])
    caption = (
        f"Mean reward by number of tool calls; the highest is {short(groups[best][3])}, for "
        f"{pluralize(groups[best][2], 'rollout')} with {names[best]} calls."
    )
    rows = [
        ((name, f"{rollouts:,}", short(mean), "–" if solved is None else f"{solved:,}"), href)
        for (_, _, rollouts, mean, solved), name, href in zip(groups, names, hrefs, strict=True)
    ]
    numbers = table(("tool calls", "rollouts", "mean reward", "solved"), rows)
    drawn = histogram(caption, bars, Axis("tool calls", integers=True), Axis("mean reward"))
    return chart("by_calls", "Reward by tool calls", drawn, caption, numbers)


def solve_rates(found: Tasks, links: Links | None = None) -> Chart:
    """Draw the number of tasks by solve rate."""
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


def pass_at(found: Tasks) -> Chart:
    """Draw pass@k, pass^k and, if it is defined, cons@k as functions of k."""
    any_of = [
        Point(
            at.k,
            at.any.mean,
            at.any.low,
            at.any.high,
            f"pass@{at.k}: {share(at.any.mean)}, {pluralize(at.tasks, 'task')}",
        )
        for at in found.pass_at
    ]
    every = [
        Point(
            *(at.k, at.every.mean, at.every.low, at.every.high),
            f"pass^{at.k}: {share(at.every.mean)}, {pluralize(at.tasks, 'task')}",
        )
        for at in found.pass_at
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
    drawn = [Line("pass@k: any of k", any_of), Line("pass^k: all of k", every)]
    voted = _consensus(found)
    title = "pass@k and pass^k"
    head: tuple[str, ...] = ("k", "pass@k", "pass^k", "tasks")
    if voted:
        drawn.append(Line("cons@k: most of k", voted))
        title, head = "pass@k, pass^k and cons@k", ("k", "pass@k", "pass^k", "cons@k", "tasks")
        caption += f" At k = {int(voted[-1].x)}, the most common answer is right in {share(voted[-1].y)} of the tasks."
    rows = [
        (
            (
                *(str(at.k), share(at.any.mean), share(at.every.mean)),
                *((share(at.consensus.mean) if at.consensus else "–",) if voted else ()),
                f"{at.tasks:,}",
            ),
            None,
        )
        for at in found.pass_at
    ]
    svg = lines(caption, drawn, Axis("k", integers=True), Axis("share of tasks", percent=True))
    return chart("pass_at", title, svg, caption, table(head, rows))


def _consensus(found: Tasks) -> list[Point]:
    return [
        Point(
            *(at.k, at.consensus.mean, at.consensus.low, at.consensus.high),
            f"cons@{at.k}: {share(at.consensus.mean)}, {pluralize(at.tasks, 'task')}",
        )
        for at in found.pass_at
        if at.consensus is not None
    ]


def _with_reward(one: Bin, links: Links | None, *, last: bool) -> str | None:
    """Return the URL of the rollouts in a bar. Every bar except the last excludes its upper bound."""
    if links is None:
        return None
    high = one.high if last or one.low == one.high else one.high - 2 * _SAME
    return links.rollouts(min_reward=one.low, max_reward=high)


def _joined(group: Sequence[ByCalls]) -> tuple[int, int, int, float, int | None]:
    """Return the lowest and the highest number of calls, the number of rollouts, the mean reward, and the number
    solved.
    """
    rollouts = sum(one.rollouts for one in group)
    mean = sum(one.mean_reward * (one.rollouts / rollouts) for one in group)
    counts = [one.solved for one in group if one.solved is not None]
    return group[0].tool_calls, group[-1].tool_calls, rollouts, mean, sum(counts) if counts else None
