"""Builds the sections of one run from its profile."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.services.charts import group_charts, profile_charts
from rollyard.services.charts.labels import pluralize
from rollyard.services.datasets.spread import Spread
from rollyard.services.metrics.profile_records import Coverage, Profile, Rewards, Tasks, ToolCalls
from rollyard.services.metrics.stage_times import TOTAL
from rollyard.services.report.dataset_sections import consensus_cells, datasets, has_consensus, over, pass_table
from rollyard.services.report.formatting import (
    NOTHING,
    count,
    interval,
    measured,
    number,
    percent,
    reward,
    seconds,
    share,
)
from rollyard.services.report.headline import bounds, headline
from rollyard.services.report.section import Section, Table

_ROWS = 40


def sections(profile: Profile) -> list[Section]:
    """Return all sections of a run, most important first."""
    all_sections = [datasets(profile), headline(profile), bounds(profile)]
    if profile.rewards is not None:
        all_sections.append(_rewards(profile.rewards, profile.coverage))
    if profile.tool_calls is not None:
        all_sections.append(_tool_calls(profile.tool_calls, _is_one_scale(profile)))
    if profile.tasks is not None:
        all_sections += _tasks(profile)
    all_sections += [_ends(profile), _work(profile), _time(profile), _drift(profile), _failures(profile)]
    return [section for section in all_sections if section.text or section.tables or section.charts]


def _rewards(rewards: Rewards, covered: Coverage) -> Section:
    total = covered.measured
    text = [
        f"Min {reward(rewards.min)}, max {reward(rewards.max)}, mean {reward(rewards.mean.mean)}, "
        f"median {reward(rewards.median)}, standard deviation {reward(rewards.std)} ({measured(covered)})."
    ]
    if rewards.why_no_mean:
        text = [
            f"All datasets together ({measured(covered)}). No mean, median or standard deviation is shown, not "
            f"even by tool calls or finish reason: {rewards.why_no_mean}."
        ]
    frequent = rewards.most_frequent
    rows = [(reward(value.reward), f"{value.rollouts:,}", percent(value.rollouts / total, 1)) for value in frequent]
    caption = "The most frequent rewards"
    if rewards.distinct > len(frequent):
        caption += f"; {rewards.distinct - len(frequent):,} more distinct values"
    table = Table(("reward", "rollouts", "share"), rows, caption)
    return Section("Rewards", text, [table], [profile_charts.rewards(rewards)])


def _tool_calls(calls: ToolCalls, one_scale: bool) -> Section:
    text = [f"Average {calls.mean:.2f} per rollout, min {calls.min}, max {calls.max}."]
    if one_scale:
        correlation = (
            "undefined (one of the two is constant)" if calls.correlation is None else f"{calls.correlation:.4f}"
        )
        text[0] += f" Correlation (tool calls ↔ reward): {correlation}."
    rows = [
        (
            str(by.tool_calls),
            *((reward(by.mean_reward),) if one_scale else ()),
            f"{by.rollouts:,}",
            NOTHING if by.solved is None else percent(by.solved / by.rollouts, 1),
        )
        for by in calls.by_count
    ]
    head = ("tool calls", *(("mean reward",) if one_scale else ()), "rollouts", "solved")
    charts = [profile_charts.by_calls(calls)] if len(rows) > 1 and one_scale else []
    return Section("Tool calls", text, [shortened(head, rows)], charts)


def _tasks(profile: Profile) -> list[Section]:
    tasks = profile.tasks
    if tasks is None:
        return []
    repeats = f"{tasks.most_repeats:,}"
    if tasks.fewest_repeats != tasks.most_repeats:
        repeats = f"{tasks.fewest_repeats:,} to {repeats}"
    text = [f"{pluralize(tasks.tasks, 'task')}; measured rollouts of each: {repeats}."]
    flat = tasks.zero_variance
    if tasks.never_solved is not None:
        never, always = share(tasks.never_solved, tasks.tasks), share(tasks.always_solved, tasks.tasks)
        text.append(f"Never solved: {never}; always: {always}.")
    if tasks.never_solved_first:
        others = (tasks.never_solved or 0) - len(tasks.never_solved_first)
        more = f", and {others:,} more" if others else ""
        text.append(f"Never solved, by index: {', '.join(map(str, tasks.never_solved_first))}{more}.")
    if flat.of:
        split = "" if flat.all_solved is None else f" ({flat.all_solved:,} all solved, {flat.none_solved:,} never)"
        text.append(
            f"Without variance: {share(flat.tasks, flat.of)} of the tasks with two rollouts or more{split}. All their "
            "rollouts have the same reward, so their group-relative advantage and gradient are zero."
        )
    rows = [(bin.label, f"{bin.tasks:,}", percent(bin.tasks / tasks.tasks, 1)) for bin in tasks.solve_rates]
    table = [Table(("solved", "tasks", "share"), rows, "Tasks by solve rate")] if rows else []
    all_sections = [Section("Tasks", text, table, [profile_charts.solve_rates(tasks)] if rows else [])]
    if len(tasks.pass_at) > 1:
        all_sections.append(_pass_at(tasks, profile))
    return all_sections


def _pass_at(tasks: Tasks, profile: Profile) -> Section:
    shown = [one for one in tasks.pass_at if one.k <= 16 or one.k & (one.k - 1) == 0 or one is tasks.pass_at[-1]]
    failed = any(one.any_missing_failed is not None for one in shown)
    voted = has_consensus(shown)
    head: tuple[str, ...] = ("k", "pass@k", "95% interval", "pass^k", "95% interval")
    head += ("cons@k", "95% interval", "tasks") if voted else ("tasks",)
    rows: list[tuple[str, ...]] = []
    for one in shown:
        row: tuple[str, ...] = (str(one.k), percent(one.any.mean), interval(one.any, "percent"))
        row += (percent(one.every.mean), interval(one.every, "percent"))
        row += (*consensus_cells(one), over(one)) if voted else (over(one),)
        if failed:
            row += (percent(one.any_missing_failed), percent(one.every_missing_failed))
        rows.append(row)
    if failed:
        head += ("pass@k, missing failed", "pass^k, missing failed")
    text = [
        f"pass@k: at least one of k rollouts solves the task; pass^k: all k do ({measured(profile.coverage)}). Both "
        "are unbiased, and each task has the same weight; tasks with fewer than k measured rollouts are excluded."
    ]
    if voted:
        text.append("cons@k: the most common answer of k rollouts is right; the first one wins a tie.")
    if shown[-1].tasks < tasks.tasks:
        text.append(
            f"Rows of different k are over different tasks: {shown[-1].tasks:,} of {tasks.tasks:,} have {shown[-1].k} "
            "rollouts. Compare them with care, because the excluded tasks may be harder or easier than the others."
        )
    tables = [Table(head, rows), *pass_table(profile.by_dataset)]
    return Section(
        "pass@k, pass^k and cons@k" if voted else "pass@k and pass^k", text, tables, [profile_charts.pass_at(tasks)]
    )


def _ends(profile: Profile) -> Section:
    ends, total = profile.ends, profile.coverage.measured
    one_scale = _is_one_scale(profile)
    kinds = (
        ("end", ends, "", one_scale),
        ("agent", profile.by_agent, "By agent", True),
        ("code", profile.by_code, "By version of the servers' code", one_scale),
    )
    tables = []
    for name, groups, caption, has_means in kinds:
        if groups:
            rows = [
                (
                    group.name,
                    f"{group.rollouts:,}",
                    percent(group.rollouts / total, 1),
                    NOTHING if group.solved is None else percent(group.solved / group.rollouts, 1),
                    *((reward(group.mean_reward),) if has_means else ()),
                )
                for group in groups
            ]
            head = (name, "rollouts", "share", "solved", *(("mean reward",) if has_means else ()))
            tables.append(shortened(head, rows, caption))
    recorded = sum(group.rollouts for group in ends)
    text = [f"{total - recorded:,} rollouts have no finish reason."] if ends and recorded < total else []
    return Section(
        "Why episodes ended", text, tables, [group_charts.ends(ends, total, means=one_scale)] if ends else []
    )


def _work(profile: Profile) -> Section:
    tokens = profile.tokens
    kinds: list[tuple[str, Spread | None]] = [
        ("turns", profile.turns),
        ("input tokens", tokens.input),
        ("output tokens", tokens.output),
        ("reasoning tokens", tokens.reasoning if tokens.reasoning and tokens.reasoning.total else None),
    ]
    rows = [
        (name, *map(number, (s.mean, s.median, s.p95, s.max)), count(s.total), _of(s.rollouts, profile.coverage))
        for name, s in kinds
        if s is not None
    ]
    head = ("per rollout", "mean", "median", "p95", "max", "sum", "recorded by")
    text = []
    if tokens.per_solved is not None:
        text.append(f"Tokens, input and output, for each solved rollout: {count(tokens.per_solved)}.")
    return Section("Turns and tokens", text, [Table(head, rows)] if rows else [])


def _time(profile: Profile) -> Section:
    rows = [
        (
            stage.stage,
            *map(seconds, (stage.seconds.mean, stage.seconds.median, stage.seconds.p95, stage.seconds.max)),
            seconds(stage.seconds.total),
            percent(stage.share, 1),
        )
        for stage in profile.stages
    ]
    if not rows:
        return Section("Time")
    head = ("stage", "mean", "median", "p95", "max", "sum", "share")
    text = ["Seconds per episode by stage; (rest) is time in no stage, such as queueing and the agent's own work."]
    total = next((stage for stage in profile.stages if stage.stage == TOTAL), None)
    if total is not None:
        text.append(
            "Shares are of the total of all rollouts and add up to 100%. Mean, median and p95 are over the rollouts "
            "that recorded the stage."
            if total.share is not None
            else "The stages of a rollout overlap and exceed its total, so shares are of their sum and add up to 100%."
        )
    drawn = any(stage.stage != TOTAL and stage.share is not None for stage in profile.stages)
    return Section("Time", text, [Table(head, rows)], [group_charts.stages(profile.stages)] if drawn else [])


def _drift(profile: Profile) -> Section:
    drift = profile.drift
    if drift is None:
        return Section("Token drift")
    rate = (
        "no turns after the first"
        if drift.rate is None
        else f"{percent(drift.rate)} ({drift.breaks:,} / {drift.turns:,})"
    )
    return Section(
        "Token drift",
        [
            f"{drift.rollouts:,} rollouts have recorded tokens. Later turns whose prompt does not begin with exactly "
            f"the tokens of the previous turn: {rate}, in {share(drift.broken_rollouts, drift.rollouts)} rollouts; at "
            f"most {drift.most_segments} segments in one. Training across a mismatch uses tokens that were never "
            "sampled."
        ],
    )


def _failures(profile: Profile) -> Section:
    found, covered = profile.failures, profile.coverage
    if not found.attempts and not covered.missing:
        return Section("Failures", ["No attempt failed, and no rollout is missing."] if covered.expected else [])
    text = [
        f"{found.attempts:,} attempts failed; {found.mended:,} of their rollouts were measured later, {found.lost:,} "
        "are missing. Failures never count as rewards."
    ]
    if covered.missing and covered.missing > found.lost:
        text.append(
            f"{covered.missing - found.lost:,} missing rollouts have no recorded failure and were not tried yet."
        )
    rows = [
        (kind.kind, f"{kind.attempts:,}", f"{kind.lost:,}", ", ".join(kind.servers[:3]) or NOTHING)
        for kind in found.kinds
    ]
    head = ("kind", "attempts", "missing rollouts", "server")
    return Section("Failures", text, [shortened(head, rows)] if rows else [])


def shortened(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str = "") -> Table:
    """Return a table of the first rows. If rows are omitted, the caption states the total number."""
    if len(rows) > _ROWS:
        caption = f"{caption or 'The first'}: {_ROWS} of {len(rows):,}, all in profile.json"
    return Table(head, rows[:_ROWS], caption)


def _is_one_scale(profile: Profile) -> bool:
    """Return whether rewards can be averaged over all rollouts."""
    return profile.rewards is None or not profile.rewards.why_no_mean


def _of(rollouts: int, covered: Coverage) -> str:
    return "all" if rollouts == covered.measured else f"{rollouts:,} of {covered.measured:,}"
