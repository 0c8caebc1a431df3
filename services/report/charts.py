"""Which picture shows what: records -> pictures, each with a caption that says it in words."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.services.metrics.comparison import Difference
from rollyard.services.metrics.profile_records import Group, Profile, Rewards, Stage, Tasks, ToolCalls
from rollyard.services.report.formatting import interval, percent, points, reward, seconds, several, signed
from rollyard.services.report.pictures import Axis, Bar, Line, Point, histogram, intervals, lines, rows
from rollyard.services.report.section import Picture

_ROLLOUTS = Axis("rollouts", whole=True)
_MOST_ROWS = 12


def rewards(found: Rewards) -> Picture:
    """How rewards are spread."""
    bars = [
        Bar(
            one.low,
            one.high,
            one.rollouts,
            f"{reward(one.low) if one.low == one.high else f'{reward(one.low)} to {reward(one.high)}'}: "
            f"{several(one.rollouts, 'rollout')}",
        )
        for one in found.histogram
    ]
    caption = (
        f"Rewards of the measured rollouts, from {reward(found.min)} to {reward(found.max)}; the most frequent is "
        f"{reward(found.most_frequent[0].reward)}, {several(found.most_frequent[0].rollouts, 'time')}."
    )
    return Picture(histogram(caption, bars, Axis("reward"), _ROLLOUTS), caption)


def by_calls(found: ToolCalls) -> Picture:
    """Mean reward by tool calls."""
    bars = [
        Bar(
            by.tool_calls,
            by.tool_calls,
            by.mean_reward,
            f"{several(by.tool_calls, 'tool call')}: mean reward {reward(by.mean_reward)}, "
            f"{several(by.rollouts, 'rollout')}",
        )
        for by in found.by_count
    ]
    best = max(found.by_count, key=lambda by: by.mean_reward)
    caption = (
        f"Mean reward by number of tool calls; the best mean, {reward(best.mean_reward)}, is that of "
        f"{several(best.rollouts, 'rollout')} with {best.tool_calls}."
    )
    return Picture(histogram(caption, bars, Axis("tool calls", whole=True), Axis("mean reward")), caption)


def solve_rates(found: Tasks) -> Picture:
    """How many tasks are solved how often."""
    bars = [
        Bar(one.low, one.high, one.tasks, f"{one.label}: {several(one.tasks, 'task')}") for one in found.solve_rates
    ]
    if any(one.low != one.high for one in found.solve_rates):
        # `none` and `all` get places of their own beside the tenths.
        bars[0] = Bar(-0.1, -0.02, bars[0].value, bars[0].tip)
        bars[-1] = Bar(1.02, 1.1, bars[-1].value, bars[-1].tip)
    caption = (
        f"Tasks by the share of their rollouts that solved them; {found.never_solved:,} of {found.tasks:,} never, "
        f"{found.always_solved:,} always."
    )
    drawn = histogram(caption, bars, Axis("solved share of a task's rollouts", percent=True), Axis("tasks", whole=True))
    return Picture(drawn, caption)


def pass_at(found: Tasks) -> Picture:
    """pass@k and pass^k over k."""
    any_line = [
        Point(
            one.k,
            one.any.mean,
            one.any.low,
            one.any.high,
            f"pass@{one.k}: {percent(one.any.mean)}, {one.tasks:,} tasks",
        )
        for one in found.pass_at
    ]
    every_line = [
        Point(
            *(one.k, one.every.mean, one.every.low, one.every.high),
            f"pass^{one.k}: {percent(one.every.mean)}, {one.tasks:,} tasks",
        )
        for one in found.pass_at
    ]
    first, last = found.pass_at[0], found.pass_at[-1]
    over = (
        f"{last.tasks:,} tasks"
        if last.tasks == found.tasks
        else f"the {last.tasks:,} of {found.tasks:,} tasks with {last.k} rollouts"
    )
    caption = (
        f"From k = 1 ({percent(first.any.mean)}, over {first.tasks:,} tasks) to k = {last.k}: at least one of k solves "
        f"{percent(last.any.mean)} of {over}, all k solve {percent(last.every.mean)}. Bands are 95% intervals."
    )
    drawn = [Line("pass@k: any of k", any_line), Line("pass^k: all of k", every_line)]
    return Picture(lines(caption, drawn, Axis("k", whole=True), Axis("share of tasks", percent=True)), caption)


def ends(found: Sequence[Group], whole: int) -> Picture:
    """Why episodes ended."""
    shown = found[:_MOST_ROWS]
    bars = [
        (group.name, float(group.rollouts), f"{group.rollouts:,} ({percent(group.rollouts / whole, 1)})")
        for group in shown
    ]
    caption = f"Why episodes ended: most often {shown[0].name} ({percent(shown[0].rollouts / whole, 1)} of rollouts)."
    return Picture(rows(caption, bars), caption)


def stages(found: Sequence[Stage]) -> Picture:
    """Where the time went."""
    shown = [stage for stage in found if stage.share is not None][:_MOST_ROWS]
    bars = [
        (stage.stage, stage.share or 0.0, f"{percent(stage.share, 1)}, {seconds(stage.seconds.mean)} a rollout")
        for stage in shown
    ]
    caption = f"Time of an episode by stage: most in {shown[0].stage} ({percent(shown[0].share, 1)})."
    return Picture(rows(caption, bars), caption)


def side_by_side(runs: Sequence[Profile]) -> list[Picture]:
    """Success rate and mean reward of several runs, with their intervals."""
    made = []
    rates = [(run.name, run.solved.rate) for run in runs if run.solved is not None]
    means = [(run.name, run.rewards.mean) for run in runs if run.rewards is not None and not run.rewards.why_no_mean]
    for what, found, form, axis in (
        ("Success rate", rates, "percent", Axis("success rate", percent=True)),
        ("Mean reward", means, "reward", Axis("mean reward")),
    ):
        if len(found) > 1:
            write = percent if form == "percent" else reward
            drawn = [
                Line(name, [Point(e.mean, 0, e.low, e.high, f"{name}: {write(e.mean)}, {interval(e, form)}")])
                for name, e in found
            ]
            said = "; ".join(f"{name} {write(e.mean)}" for name, e in found)
            caption = f"{what} with 95% intervals: {said}."
            made.append(Picture(intervals(caption, drawn, axis), caption))
    return made


def difference(found: Difference) -> list[Picture]:
    """Paired differences to the first run."""
    made = []
    for what, one, form, axis in (
        ("solve rate", found.solve_rate, "points", Axis("difference in solve rate", percent=True)),
        ("mean reward", found.reward, "signed", Axis("difference in mean reward")),
    ):
        if one is not None:
            said = points(one.mean) if form == "points" else signed(one.mean)
            caption = f"{found.name} minus {found.baseline}, {what}, mean over tasks: {said} ({interval(one, form)})."
            name = f"{found.name} minus {found.baseline}: {said}"
            drawn = [Line(name, [Point(one.mean, 0, one.low, one.high, caption)])]
            made.append(Picture(intervals(caption, drawn, axis, zero=True), caption))
    return made
