"""The sections of a run's report, made from its profile and findings: headings with text, tables and charts.

All text is plain; renderers must escape it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollyard.analysis.charts import run_charts
from rollyard.analysis.charts.charts import Chart, DrawnInterval, chart, intervals
from rollyard.analysis.charts.svg import Axis
from rollyard.analysis.findings.detector import Finding, Findings
from rollyard.analysis.metrics import profile_records as records
from rollyard.analysis.metrics.estimators import Estimate, MeanSpread
from rollyard.analysis.metrics.profile import TOTAL
from rollyard.analysis.report.formatting import (
    FORMS,
    NOTHING,
    ViewerLinks,
    count,
    coverage_sentence,
    interval,
    mark_partial,
    measured,
    number,
    percent,
    reward,
    seconds,
    share,
)
from rollyard.records.terminal import pluralize


@dataclass(frozen=True)
class Table:
    """A table of plain text cells. The first column contains the names of the rows."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""


@dataclass(frozen=True)
class Link:
    text: str
    href: str
    """An address that the program built; never text from rollouts."""


@dataclass(frozen=True)
class Section:
    title: str
    text: list[str] = field(default_factory=list)
    """One string per paragraph."""
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    parts: list[Section] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    """Shown after the text."""
    is_folded: bool = False
    """Whether a page shows only the heading until it is opened. It is printed in full."""


def work(profile: records.Profile) -> Section:
    tokens, measured_rollouts = profile.tokens, profile.coverage.measured
    kinds: list[tuple[str, MeanSpread | None]] = [
        ("turns", profile.turns),
        ("input tokens", tokens.input),
        ("output tokens", tokens.output),
        ("reasoning tokens", tokens.reasoning if tokens.reasoning and tokens.reasoning.total else None),
    ]
    rows = [
        (
            *(name, number(s.mean), interval(s.estimate, "number"), *map(number, (s.median, s.p95, s.max))),
            *(count(s.total), "all" if s.rollouts == measured_rollouts else f"{s.rollouts:,} of {measured_rollouts:,}"),
        )
        for name, s in kinds
        if s is not None
    ]
    head = ("per rollout", "mean", _LEVEL, "median", "p95", "max", "sum", "recorded by")
    text = []
    if tokens.per_solved is not None:
        text.append(f"Tokens, input and output, for each solved rollout: {count(tokens.per_solved)}.")
    return Section("Turns and tokens", text, [Table(head, rows)] if rows else [])


def time(profile: records.Profile) -> Section:
    rows = [
        (
            *(stage.stage, seconds(stage.seconds.mean), interval(stage.seconds.estimate, "seconds")),
            *map(seconds, (stage.seconds.median, stage.seconds.p95, stage.seconds.max)),
            seconds(stage.seconds.total),
            percent(stage.share, 1),
        )
        for stage in profile.stages
    ]
    if not rows:
        return Section("Time")
    head = ("stage", "mean", _LEVEL, "median", "p95", "max", "sum", "share of time")
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
    return Section("Time", text, [Table(head, rows)], [run_charts.stages(profile.stages)] if drawn else [])


_MAX_DATASETS = 100
_LEVEL = "95% interval"


def datasets(profile: records.Profile) -> Section:
    """Return the figures of each dataset, with pass@k and cons@k at the largest k that all of its tasks have."""
    found = profile.by_dataset
    if not found:
        return Section("Datasets")
    text = ["Each dataset separately, with 95% intervals clustered by task."]
    if profile.rewards is not None and profile.rewards.why_no_mean:
        text.append(f"There is no mean reward over all datasets: {profile.rewards.why_no_mean}.")
    if profile.solved is None:
        silent = ", ".join(dataset_name(one) for one in found if one.rate is None)
        text.append(f"There is no success rate over all datasets: it is undefined what counts as solved in {silent}.")
    head = ("dataset", "rollouts", "tasks", "success rate", _LEVEL, "mean reward", _LEVEL, "pass@k", "cons@k")
    rows = [
        (
            dataset_name(one),
            f"{one.rollouts:,}",
            f"{one.tasks:,}" if one.tasks else NOTHING,
            NOTHING if one.rate is None else f"{percent(one.rate.mean)} ({one.solved:,} / {one.rollouts:,})",
            interval(one.rate, "percent"),
            *mean_cells(one.reward, "reward"),
            *_at_common_k(one),
        )
        for one in found[:_MAX_DATASETS]
    ]
    caption = f"The first {_MAX_DATASETS} of {len(found):,}, all in profile.json" if len(found) > _MAX_DATASETS else ""
    return Section("Datasets", text, [Table(head, rows, caption)])


def _pass_rows(found: Sequence[tuple[str, records.PassAtK]], name: str, *, missing: bool = False) -> Table:
    """Return a table of pass@k, pass^k and, if a row has it, cons@k. `missing`: also with missing ones as failed."""
    voted = any(at.consensus is not None for _, at in found)
    head: tuple[str, ...] = (name, "pass@k", _LEVEL, "pass^k", _LEVEL, *(("cons@k", _LEVEL) if voted else ()), "tasks")
    head += ("pass@k, missing failed", "pass^k, missing failed") if missing else ()
    rows = [
        (
            *(label, percent(at.any.mean), interval(at.any, "percent")),
            *(percent(at.every.mean), interval(at.every, "percent")),
            *(mean_cells(at.consensus, "percent") if voted else ()),
            over(at),
            *((percent(at.any_missing_failed), percent(at.every_missing_failed)) if missing else ()),
        )
        for label, at in found
    ]
    return Table(head, rows)


def over_tasks(at: records.PassAtK) -> str:
    """Return `over 12 tasks`, or `over 3 of 12 tasks` if the others have fewer than k rollouts."""
    return f"over {pluralize(at.tasks, 'task')}" if at.tasks == at.tasks_measured else f"over {over(at)} tasks"


def over(at: records.PassAtK) -> str:
    """Return `12`, or `3 of 12` if the others have fewer than k rollouts."""
    return f"{at.tasks:,}" if at.tasks == at.tasks_measured else f"{at.tasks:,} of {at.tasks_measured:,}"


def dataset_name(one: records.DatasetFigures) -> str:
    return one.name or "(no dataset)"


def at_common_k(found: Sequence[records.PassAtK]) -> records.PassAtK | None:
    """Return the entry with the largest k for which every measured task has enough rollouts, if any."""
    return next((at for at in reversed(found) if at.tasks == at.tasks_measured), None)


def _at_common_k(one: records.DatasetFigures) -> tuple[str, str]:
    at = at_common_k(one.pass_at)
    if at is None or at.k < 2:
        return NOTHING, NOTHING
    consensus = NOTHING if at.consensus is None else f"cons@{at.k} {percent(at.consensus.mean)}"
    return f"pass@{at.k} {percent(at.any.mean)}", consensus


def headline(profile: records.Profile) -> Section:
    covered = profile.coverage
    rows = [(name, mark_partial(value, covered), reach, measured(covered)) for name, value, reach in headlines(profile)]
    text = []
    if profile.models:
        text.append(f"Model: {', '.join(profile.models[:5])}. Agent: {', '.join(profile.agents[:5]) or 'unnamed'}.")
    text.append(coverage_sentence(covered))
    text += profile.notes
    if profile.solved is not None:
        text.append(f"Solved means: {profile.solved.rule}.")
    elif profile.rewards is not None:
        text.append(
            "It is undefined what counts as solved: the environment reports no success and rewards are not in 0..1. "
            "Set the minimum reward with --pass-threshold ..."
        )
    if profile.rewards is not None and profile.rewards.why_no_mean:
        text.append(f"No mean reward over all datasets: {profile.rewards.why_no_mean}.")
    return Section("Headline", text, [Table(("", "as measured", "95% interval", "coverage"), rows)])


def headlines(profile: records.Profile) -> list[tuple[str, str, str]]:
    """Return the headline numbers as (name, value, interval) tuples. A metric has the same name in every run."""
    solved, tasks = profile.solved, profile.tasks
    rewards = None if profile.rewards is None or profile.rewards.why_no_mean else profile.rewards
    rate = f"{percent(solved.rate.mean)} ({solved.rollouts:,} / {profile.coverage.measured:,})" if solved else NOTHING
    found = [
        ("success rate", rate, interval(solved.rate if solved else None, "percent")),
        ("mean reward", *mean_cells(rewards.mean if rewards else None, "reward")),
        ("median reward", reward(rewards.median if rewards else None), NOTHING),
    ]
    if tasks and len(tasks.pass_at) > 1:
        last = tasks.pass_at[-1]
        for at in (at_common_k(tasks.pass_at), last) if last.tasks < last.tasks_measured else (last,):
            if at is not None and at.k > 1:
                for metric, one in (("pass@", at.any), ("pass^", at.every), ("cons@", at.consensus)):
                    if one is not None:
                        figure = f"{percent(one.mean)} ({over_tasks(at)})"
                        found.append((f"{metric}{at.k}", figure, interval(one, "percent")))
    if tasks and tasks.zero_variance.of:
        flat = tasks.zero_variance
        value = f"{percent(flat.tasks / flat.of)} ({flat.tasks:,} / {flat.of:,})"
        found.append(("tasks without variance", value, interval(flat.share, "percent")))
    return found


def bounds(profile: records.Profile) -> Section:
    """Return the section with the bounds of the headline numbers. It is empty unless rollouts are missing."""
    covered, solved, rewards = profile.coverage, profile.solved, profile.rewards
    if not covered.missing or rewards is None:
        return Section("Bounds")
    head = ("", "as measured", "missing as zero", "lowest", "highest")
    rows = []
    if not rewards.why_no_mean:
        rows.append(("mean reward", *map(reward, (rewards.mean.mean, *rewards.bounds.model_dump().values()))))
    if solved is not None:
        rows.insert(0, ("success rate", *map(percent, (solved.rate.mean, *solved.bounds.model_dump().values()))))
    text = [
        f"{covered.missing:,} of {covered.expected:,} rollouts are missing. Lowest and highest assume that each of "
        "them is as bad as the worst or as good as the best measured one (for the success rate: none or all solved)."
    ]
    return Section("Bounds", text, [Table(head, rows)])


_ROWS = 40


def sections(profile: records.Profile) -> list[Section]:
    """Return all sections of a run, most important first: what it scored, what fails, and then the details."""
    all_sections = [datasets(profile), headline(profile), bounds(profile), _failures(profile), _ends(profile)]
    if profile.tasks is not None:
        all_sections += _tasks(profile)
    if profile.rewards is not None:
        all_sections.append(_rewards(profile.rewards, profile.coverage))
    if profile.tool_calls is not None:
        all_sections.append(_tool_calls(profile.tool_calls, _is_one_scale(profile)))
    all_sections += [work(profile), time(profile), _drift(profile)]
    return [section for section in all_sections if section.text or section.tables or section.charts]


def _rewards(rewards: records.Rewards, covered: records.Coverage) -> Section:
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
    return Section("Rewards", text, [table], [run_charts.rewards(rewards)])


def _tool_calls(calls: records.ToolCalls, one_scale: bool) -> Section:
    text = [f"Average {calls.mean:.2f} per rollout, min {calls.min}, max {calls.max}."]
    if one_scale:
        undefined = "undefined (one of the two is constant)"
        correlation = undefined if calls.correlation is None else f"{calls.correlation:.4f}"
        text[0] += f" Correlation (tool calls ↔ reward): {correlation}."
    rows = [
        (
            *(str(by.tool_calls), *_reward_cells(by.reward, one_scale), f"{by.rollouts:,}"),
            *(*_share_cells(by.share), *_share_cells(by.rate)),
        )
        for by in calls.by_count
    ]
    means = ("mean reward", _LEVEL) if one_scale else ()
    head = ("tool calls", *means, "rollouts", "share", _LEVEL, "solved", _LEVEL)
    charts = [run_charts.by_calls(calls)] if len(rows) > 1 and one_scale else []
    return Section("Tool calls", text, [shortened(head, rows)], charts)


def _tasks(profile: records.Profile) -> list[Section]:
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
    all_sections = [Section("Tasks", text, table, [run_charts.solve_rates(tasks)] if rows else [])]
    if len(tasks.pass_at) > 1:
        all_sections.append(_pass_at(tasks, profile))
    return all_sections


def _pass_at(tasks: records.Tasks, profile: records.Profile) -> Section:
    shown = [one for one in tasks.pass_at if one.k <= 16 or one.k & (one.k - 1) == 0 or one is tasks.pass_at[-1]]
    failed = any(one.any_missing_failed is not None for one in shown)
    text = [
        f"pass@k: at least one of k rollouts solves the task; pass^k: all k do ({measured(profile.coverage)}). Both "
        "are unbiased, and each task has the same weight; tasks with fewer than k measured rollouts are excluded."
    ]
    voted = any(one.consensus is not None for one in shown)
    if voted:
        text.append("cons@k: the most common answer of k rollouts is right; the first one wins a tie.")
    if shown[-1].tasks < tasks.tasks:
        text.append(
            f"Rows of different k are over different tasks: {shown[-1].tasks:,} of {tasks.tasks:,} have {shown[-1].k} "
            "rollouts. Compare them with care, because the excluded tasks may be harder or easier than the others."
        )
    tables = [_pass_rows([(str(one.k), one) for one in shown], "k", missing=failed)]
    by_dataset = [
        (f"{dataset_name(one)}, {at.k}", at)
        for one in profile.by_dataset[:_MAX_DATASETS]
        for at in one.pass_at
        if at.k & (at.k - 1) == 0 or at is one.pass_at[-1]
    ]
    if by_dataset:
        tables.append(replace(_pass_rows(by_dataset, "dataset, k"), caption="By dataset"))
    title = "pass@k, pass^k and cons@k" if voted else "pass@k and pass^k"
    return Section(title, text, tables, [run_charts.pass_at(tasks)])


def _ends(profile: records.Profile) -> Section:
    ends, total = profile.ends, profile.coverage.measured
    one_scale = _is_one_scale(profile)
    kinds = (
        ("end", ends, "", one_scale),
        ("agent", profile.by_agent, "By agent", True),
        ("code", profile.by_code, "By version of the servers' code", one_scale),
    )
    tables = []
    for name, groups, caption, has_means in kinds:
        rows = [
            (
                *(group.name, f"{group.rollouts:,}", *_share_cells(group.share), *_share_cells(group.rate)),
                *_reward_cells(group.reward, has_means),
            )
            for group in groups
        ]
        means = ("mean reward", _LEVEL) if has_means else ()
        if rows:
            tables.append(shortened((name, "rollouts", "share", _LEVEL, "solved", _LEVEL, *means), rows, caption))
    recorded = sum(group.rollouts for group in ends)
    text = [f"{total - recorded:,} rollouts have no finish reason."] if ends and recorded < total else []
    return Section("Why episodes ended", text, tables, [run_charts.ends(ends, total, means=one_scale)] if ends else [])


def _drift(profile: records.Profile) -> Section:
    drift = profile.drift
    if drift is None:
        return Section("Token drift")
    rate = "no turns after the first"
    if drift.rate is not None:
        rate = f"{percent(drift.rate)} ({drift.breaks:,} / {drift.turns:,})"
    text = (
        f"{drift.rollouts:,} rollouts have recorded tokens. Later turns whose prompt does not begin with exactly "
        f"the tokens of the previous turn: {rate}, in {share(drift.broken_rollouts, drift.rollouts)} rollouts; at "
        f"most {drift.most_segments} segments in one. Training across a mismatch uses tokens that were never sampled."
    )
    return Section("Token drift", [text])


def _failures(profile: records.Profile) -> Section:
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


def mean_cells(found: Estimate | None, form: str) -> tuple[str, str]:
    """Return a mean and its interval, in the form of `interval`."""
    return FORMS[form](None if found is None else found.mean), interval(found, form)


def _share_cells(found: Estimate | None) -> tuple[str, str]:
    return mean_cells(found, "share")


def _reward_cells(found: Estimate | None, shown: bool) -> tuple[str, ...]:
    """Return a mean reward and its interval; nothing if rewards have different scales."""
    return mean_cells(found, "reward") if shown else ()


def _is_one_scale(profile: records.Profile) -> bool:
    return profile.rewards is None or not profile.rewards.why_no_mean


# What stands out in a run: the first section of its report.

_MOST_FINDINGS = 8
"""Maximum number of findings with a paragraph. The table contains all of them."""


def findings_section(found: Findings, run: int, viewer: ViewerLinks) -> Section:
    """Return the section, with links in its paragraphs if there is a viewer."""
    if not found.findings:
        text = f"Nothing stands out in {pluralize(found.rollouts, 'rollout')}."
        return Section("Findings", [text, _CAUTION] if found.rollouts else [])
    parts = [_paragraph(one, run, viewer) for one in found.findings[:_MOST_FINDINGS]]
    return Section("Findings", [_CAUTION], [_finding_table(found.findings)], _finding_charts(found.findings), parts)


def compared_findings(
    runs: Sequence[records.Profile], found: Sequence[Findings | None], viewer: ViewerLinks
) -> list[Section]:
    """Return a section with the findings of several runs side by side; empty if there are none."""
    each = [{one.kind: one for one in findings.findings} if findings else {} for findings in found]
    most = {kind: max(one[kind].stake for one in each if kind in one) for one in each for kind in one}
    kinds = sorted(most, key=lambda kind: (-most[kind], kind))[:_MOST_FINDINGS]
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


def _finding_table(found: Sequence[Finding]) -> Table:
    rows = [
        (
            *(one.title, f"{one.count:,} / {one.of:,}", *mean_cells(one.share, "share")),
            *(*mean_cells(one.mean_reward, "reward"), f"{one.tasks:,}", percent(one.stake, 1)),
        )
        for one in found
    ]
    head = ("finding", "count", "share", "95% interval", "mean reward", "95% interval", "tasks", "reward concerned")
    return Table(head, rows)


def _finding_charts(found: Sequence[Finding]) -> list[Chart]:
    rows = [
        DrawnInterval(f"{one.title}: {percent(of.mean, 1)}", of.mean, of.low, of.high, one.sentence)
        for one in found[:_MOST_FINDINGS]
        for of in (one.share,)
    ]
    caption = "Share of the rollouts that each finding concerns, with 95% intervals clustered by task."
    return [chart("findings", "Findings", intervals(caption, rows, Axis("share", percent=True), zero=True), caption)]
