"""Builds the sections of one run from its profile."""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts import group_charts, profile_charts
from rollyard.analysis.charts.labels import pluralize
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.profile_records import Coverage, Profile, Rewards, Tasks, ToolCalls
from rollyard.analysis.report import cost_sections
from rollyard.analysis.report.dataset_sections import consensus_cells, datasets, has_consensus, over, pass_table
from rollyard.analysis.report.formatting import (
    NOTHING,
    interval,
    measured,
    percent,
    reward,
    share,
)
from rollyard.analysis.report.headline import bounds, headline
from rollyard.analysis.report.section import Section, Table

_ROWS = 40
_LEVEL = "95% interval"


def sections(profile: Profile) -> list[Section]:
    """Return all sections of a run, most important first: what it scored, what fails, and then the details."""
    all_sections = [datasets(profile), headline(profile), bounds(profile), _failures(profile), _ends(profile)]
    if profile.tasks is not None:
        all_sections += _tasks(profile)
    if profile.rewards is not None:
        all_sections.append(_rewards(profile.rewards, profile.coverage))
    if profile.tool_calls is not None:
        all_sections.append(_tool_calls(profile.tool_calls, _is_one_scale(profile)))
    all_sections += [cost_sections.work(profile), cost_sections.time(profile), _drift(profile)]
    return [section for section in all_sections if section.text or section.tables or section.charts]


def _rewards(rewards: Rewards, covered: Coverage) -> Section:
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
    rows = [(reward(value.reward), f"{value.rollouts:,}", *_share_cells(value.share)) for value in frequent]
    caption = "The most frequent rewards"
    if rewards.distinct > len(frequent):
        caption += f"; {rewards.distinct - len(frequent):,} more distinct values"
    table = Table(("reward", "rollouts", "share", _LEVEL), rows, caption)
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
            *_reward_cells(by.reward, one_scale),
            f"{by.rollouts:,}",
            *_share_cells(by.share),
            *_share_cells(by.rate),
        )
        for by in calls.by_count
    ]
    means = ("mean reward", _LEVEL) if one_scale else ()
    head = ("tool calls", *means, "rollouts", "share", _LEVEL, "solved", _LEVEL)
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
    rows = [(bin.label, f"{bin.tasks:,}", *_share_cells(bin.share)) for bin in tasks.solve_rates]
    table = [Table(("solved", "tasks", "share", _LEVEL), rows, "Tasks by solve rate")] if rows else []
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
                    *_share_cells(group.share),
                    *_share_cells(group.rate),
                    *_reward_cells(group.reward, has_means),
                )
                for group in groups
            ]
            means = ("mean reward", _LEVEL) if has_means else ()
            head = (name, "rollouts", "share", _LEVEL, "solved", _LEVEL, *means)
            tables.append(shortened(head, rows, caption))
    recorded = sum(group.rollouts for group in ends)
    text = [f"{total - recorded:,} rollouts have no finish reason."] if ends and recorded < total else []
    return Section(
        "Why episodes ended", text, tables, [group_charts.ends(ends, total, means=one_scale)] if ends else []
    )


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
        (
            *(kind.kind, f"{kind.attempts:,}", *_share_cells(kind.share)),
            *(f"{kind.lost:,}", ", ".join(kind.servers[:3]) or NOTHING),
        )
        for kind in found.kinds
    ]
    head = ("kind", "attempts", "share of attempts", _LEVEL, "missing rollouts", "server")
    return Section("Failures", text, [shortened(head, rows)] if rows else [])


def shortened(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], caption: str = "") -> Table:
    """Return a table of the first rows. If rows are omitted, the caption states the total number."""
    if len(rows) > _ROWS:
        caption = f"{caption or 'The first'}: {_ROWS} of {len(rows):,}, all in profile.json"
    return Table(head, rows[:_ROWS], caption)


def _share_cells(found: Estimate | None) -> tuple[str, str]:
    """Return a share and its interval."""
    return percent(None if found is None else found.mean, 1), interval(found, "share")


def _reward_cells(found: Estimate | None, shown: bool) -> tuple[str, ...]:
    """Return a mean reward and its interval; nothing if rewards have different scales."""
    return (reward(None if found is None else found.mean), interval(found, "reward")) if shown else ()


def _is_one_scale(profile: Profile) -> bool:
    """Return whether rewards can be averaged over all rollouts."""
    return profile.rewards is None or not profile.rewards.why_no_mean
