"""What is shown of differences between runs: the document of `ng_compare`, and sections of a report of several runs.

The gate and `ng_compare` print values, changes and p-values as it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollyard.analysis.charts import run_charts
from rollyard.analysis.charts.charts import Chart, DrawnInterval, chart, intervals
from rollyard.analysis.charts.svg import Axis
from rollyard.analysis.metrics.comparison import POWER, Change, DatasetDifference, Difference
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.metrics.run_pair import ChangedTasks, Metric, PairedDifference, RunComparisons, RunPair
from rollyard.analysis.metrics.verdicts import Answers, VerdictComparison
from rollyard.analysis.report.formatting import (
    FORMS,
    NOTHING,
    ViewerLinks,
    interval,
    mark_partial,
    measured,
    number,
    percent,
    points,
    reward,
    signed,
)
from rollyard.analysis.report.sections import Link, Section, Table, headlines

_TASKS = 10
"""Maximum number of changed tasks in a table; comparison.json contains up to 10,000."""

METHOD = (
    "Every task has the same weight: a metric is computed for each task from its rollouts, and the runs are compared "
    "by the differences of their common tasks (Miller 2024, arXiv:2411.00640, section 4).",
    "If each task has one binary outcome in each run (one rollout, or pass@k and cons@k of k rollouts): McNemar's "
    "exact test, with its mid-p variant (Fagerland et al. 2013), and Tango's score interval (1998).",
    "Otherwise: the bootstrap over tasks, each with all its rollouts in both runs. The interval is BCa (Efron 1987), "
    "because few tasks change and their differences are skewed; it is extended to the paired t interval, which is "
    "wider with few tasks, and for metrics in 0..1 to its adjustment by Agresti & Min (2005), because few tasks may "
    "include none of the rare large changes. The p-value is the larger one of the bootstrap and the paired t test.",
    "If all tasks changed equally, there is no variance: the interval is the exact bound from the number of tasks, or "
    "Wilson's, and the p-value is that of the sign test.",
    "Minimum detectable effect: the smallest true difference that a test at level alpha finds with a probability of "
    f"{POWER:.0%}, for the measured variance of the tasks' differences (Guenther 1981).",
)


def document(found: RunComparisons, viewer: ViewerLinks) -> tuple[str, list[Section]]:
    """Return the title and the sections: one per candidate, then the methods."""
    names = ", ".join(pair.candidate.name for pair in found.pairs)
    sections = [_pair(pair, found, number, viewer) for number, pair in enumerate(found.pairs, 1)]
    return f"{names} against {found.pairs[0].baseline.name}", [*sections, _method(found)]


def value(metric: str, amount: float | None) -> str:
    if Metric(metric).is_share:
        return percent(amount)
    return number(amount) if Metric(metric).is_cost else reward(amount)


def change(metric: str, amount: float | None) -> str:
    """Format a difference of a metric, with its sign: `+3.10 points` for shares."""
    if amount is None:
        return NOTHING
    if Metric(metric).is_share:
        return f"{points(amount)} points"
    return f"{'+' if amount >= 0 else ''}{number(amount)}" if Metric(metric).is_cost else signed(amount)


def reach(one: PairedDifference) -> str:
    if one.interval is None:
        return NOTHING
    low, high = (change(one.metric, bound).removesuffix(" points") for bound in (one.interval.low, one.interval.high))
    return f"{low} to {high}"


def chance(p: float | None) -> str:
    return NOTHING if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def p_equals(p: float) -> str:
    """Return `p = 0.03` or `p < 0.0001`."""
    text = chance(p)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def tasks_listed(changed: ChangedTasks, metric: str, most: int) -> str:
    """List the first tasks with their values before and after, which are omitted if all changes are between 0 and 1."""
    tasks = changed.tasks
    binary = all({one.baseline, one.candidate} == {0.0, 1.0} for one in tasks)
    shown = [
        str(one.task) if binary else f"{one.task} ({value(metric, one.baseline)} -> {value(metric, one.candidate)})"
        for one in tasks[:most]
    ]
    return ", ".join(shown) + (f", and {changed.total - most:,} more" if changed.total > most else "")


def label(one: PairedDifference) -> str:
    return one.metric if one.dataset is None else f"{one.dataset or '(no dataset)'}: {one.metric}"


def verdict(one: PairedDifference, alpha: float) -> str:
    """Return a sentence on whether the difference is more than noise."""
    p = one.p if one.p_holm is None else one.p_holm
    if p is None or one.interval is None:
        return "There is too little data to tell."
    direction = "higher" if one.difference > 0 else "lower"
    if p < alpha:
        return f"The candidate is {direction}; the difference is more than noise ({p_equals(p)})."
    if one.difference == 0:
        return "There is no difference."
    text = f"The difference may be noise ({p_equals(p)})."
    if one.detectable_effect is not None:
        least = change(one.metric, one.detectable_effect).lstrip("+")
        text += f" With these tasks, a difference below {least} is likely to be missed."
    return text


def answers_listed(found: Answers, most: int) -> str:
    """List answers by task and repeat, with their rewards and labels."""
    shown = [
        f"{one.task}/{one.repeat} ({reward(one.baseline)} -> {reward(one.candidate)}"
        + (f", labelled {one.label})" if one.label else ")")
        for one in found.answers[:most]
    ]
    return ", ".join(shown) + (f", and {found.total - most:,} more" if found.total > most else "")


def error_rates(found: VerdictComparison, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row for each of the two verdicts, below a head: the share of labelled answers that it gets wrong."""
    head = ("", "false accepts", "95% interval", "of", "false refusals", "95% interval", "of")
    rows: list[tuple[str, ...]] = [head]
    for name, one in zip(names, found.errors or (), strict=False):
        cells = [name]
        for rate, label in ((one.false_accepts, "wrong"), (one.false_refusals, "correct")):
            if rate is None:
                cells += [NOTHING, NOTHING, f"0 {label}"]
            else:
                cells += [percent(rate.share.mean), interval(rate.share, "percent"), f"{rate.labelled:,} {label}"]
        rows.append(tuple(cells))
    return rows


def agreement(found: VerdictComparison) -> str:
    """Return how often the two verdicts agree, as a sentence."""
    how = "rewards are equal" if found.accepted is None else "verdicts agree"
    reach = interval(found.agreement, "percent")
    text = f"Both runs hold the same answers: on {found.answers:,} of them there are two verdicts, and the {how} on "
    text += percent(found.agreement.mean) + ("" if reach == NOTHING else f" (95% interval {reach})")
    if found.only_baseline or found.only_candidate:
        text += f"; not compared: {found.only_baseline:,} and {found.only_candidate:,} answers with one verdict"
    return f"{text}."


def accepted_table(found: VerdictComparison, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the table of agreement, with its head."""
    if found.accepted is None:
        return []
    both, gained, lost, neither = (f"{count:,}" for count in found.accepted)
    head = ("", f"{names[1]} accepts", f"{names[1]} refuses")
    return [head, (f"{names[0]} accepts", both, lost), (f"{names[0]} refuses", gained, neither)]


def disagreements(found: VerdictComparison, names: Sequence[str]) -> list[tuple[str, Answers]]:
    """Return the answers on which the verdicts differ, by what they say."""
    both = zip(names, (found.lost, found.gained), strict=True)
    what = "only {} accepts" if found.accepted is not None else "{} gives the higher reward"
    return [(what.format(name), answers) for name, answers in both if answers.total]


def _verdicts(found: VerdictComparison, pair: RunPair, number: int, viewer: ViewerLinks) -> Section:
    names = pair.baseline.name, pair.candidate.name
    tables = []
    if rows := accepted_table(found, names):
        tables.append(Table(rows[0], rows[1:], "Answers by verdict"))
    if found.errors is not None:
        rows = error_rates(found, names)
        tables.append(Table(rows[0], rows[1:], "Errors, of the labelled answers"))
    listed, links = disagreements(found, names), list[Link]()
    text = [agreement(found)]
    for what, answers in listed:
        text.append(f"{what}: {answers.total:,} answers (task/repeat): {answers_listed(answers, _TASKS)}.")
        for one in answers.answers[:_TASKS] if viewer else ():
            address = viewer.side_by_side(0, number, one.task, one.repeat)
            links.append(Link(f"{what}: task {one.task}, repeat {one.repeat}", address))
    return Section("Verdicts", text, tables, links=links)


def _pair(pair: RunPair, found: RunComparisons, number: int, viewer: ViewerLinks) -> Section:
    title = f"{pair.candidate.name} against {pair.baseline.name}"
    text = [
        f"{one.name}: {measured(one.coverage)}, {one.tasks:,} tasks, {one.path}."
        for one in (pair.baseline, pair.candidate)
    ]
    text += pair.notes
    if not pair.tasks:
        return Section(title, text)
    text.append(_common(pair))
    text += [f"{label(one)}: {verdict(one, found.alpha)}" for one in pair.differences if one.dataset is None]
    if pair.settings:
        text.append("Different settings: " + "; ".join(pair.settings) + ".")
    tables = [_differences(pair, found), *_mcnemar(pair)]
    if pair.costs:
        tables.append(_costs(pair))
    for name, changed in (("Tasks gained", pair.gained), ("Tasks lost", pair.lost)):
        if changed.total:
            tables.append(_changed(f"{name}, by {pair.changed_by}", pair, changed))
    parts = [] if pair.verdicts is None else [_verdicts(pair.verdicts, pair, number, viewer)]
    return Section(title, text, tables, _charts(pair, found.alpha), parts=parts)


def _common(pair: RunPair) -> str:
    text = f"{pair.tasks:,} tasks are in both runs; {pair.gained.total:,} are better and {pair.lost.total:,} worse"
    text += f" by {pair.changed_by}." if pair.changed_by else "."
    if pair.only_baseline or pair.only_candidate:
        text += (
            f" Not compared: {pair.only_baseline:,} tasks only in {pair.baseline.name}, {pair.only_candidate:,} only "
            f"in {pair.candidate.name}."
        )
    return text


def _differences(pair: RunPair, found: RunComparisons) -> Table:
    level = f"{100 * (1 - found.alpha):.6g}% interval"
    head = ["metric", pair.baseline.name, pair.candidate.name, "difference", level]
    corrected = any(one.p_holm is not None for one in pair.differences)
    head += ["p", *(["p (Holm)"] if corrected else []), "tasks", "detectable"]
    head += ["tasks for effect"] if found.effect is not None else []
    rows = [
        (
            *(label(one), *_values(one), chance(one.p), *((chance(one.p_holm),) if corrected else ())),
            *(f"{one.tasks:,}", change(one.metric, one.detectable_effect).lstrip("+")),
            *((NOTHING if one.tasks_needed is None else f"{one.tasks_needed:,}",) if found.effect is not None else ()),
        )
        for one in pair.differences
    ]
    return Table(tuple(head), rows)


def _values(one: PairedDifference) -> tuple[str, ...]:
    both = value(one.metric, one.baseline), value(one.metric, one.candidate)
    return *both, change(one.metric, one.difference), reach(one)


def _mcnemar(pair: RunPair) -> list[Table]:
    rows = [
        (
            label(one),
            *(f"{count:,}" for count in (table.both, table.gained, table.lost, table.neither)),
            *(chance(table.exact_p), chance(table.mid_p)),
        )
        for one in pair.differences
        if (table := one.mcnemar) is not None
    ]
    head = ("metric", "both", "only candidate", "only baseline", "neither", "exact p", "mid-p")
    return [Table(head, rows, "McNemar's test: number of tasks by outcome")] if rows else []


def _costs(pair: RunPair) -> Table:
    rows = [(one.metric.replace("_", " "), *_values(one), f"{one.tasks:,}") for one in pair.costs]
    head = ("per rollout", pair.baseline.name, pair.candidate.name, "difference", "interval", "tasks")
    return Table(head, rows, "Costs, as means over tasks")


def _changed(caption: str, pair: RunPair, changed: ChangedTasks) -> Table:
    shown = changed.tasks[:_TASKS]
    # Most files have neither keys nor several datasets.
    named = [name for name in ("key", "dataset") if any(getattr(one, name) for one in shown)]
    rows = [
        (
            *(str(one.task), *(getattr(one, name) or NOTHING for name in named)),
            *(value(pair.changed_by, one.baseline), value(pair.changed_by, one.candidate)),
        )
        for one in shown
    ]
    if changed.total > _TASKS:
        caption += f": {_TASKS} of {changed.total:,}, more in comparison.json"
    return Table(("task", *named, pair.baseline.name, pair.candidate.name), rows, caption)


def _charts(pair: RunPair, alpha: float) -> list[Chart]:
    shares = [one for one in pair.differences if Metric(one.metric).is_share]
    if not shares:
        return []
    rows = []
    for one in shares:
        name = f"{label(one)}: {change(one.metric, one.difference)}"
        low, high = (one.interval.low, one.interval.high) if one.interval else (None, None)
        rows.append(DrawnInterval(name, one.difference, low, high, f"{name} ({reach(one)})"))
    caption = f"{pair.candidate.name} minus {pair.baseline.name} with {100 * (1 - alpha):.6g}% intervals."
    axis = Axis("difference, percentage points", points=True)
    return [chart("paired_differences", "Differences", intervals(caption, rows, axis, zero=True), caption)]


def _method(found: RunComparisons) -> Section:
    text = [
        *METHOD,
        f"Alpha {found.alpha:g}; {found.resamples:,} resamples with seed {found.seed}, so that a repetition gives the "
        "same numbers.",
    ]
    if found.tests > 1:
        text.append(
            f"p (Holm) is corrected for {found.tests} tests: every metric of every candidate over all tasks. The tests "
            "within single datasets are corrected as a second group. Intervals are not corrected."
        )
    return Section("How the numbers are computed", text, is_folded=True)


_LISTED = 5
"""Number of gained and lost tasks in the report; profile.json contains ten of each."""


def sections(runs: Sequence[Profile], differences: Sequence[Difference], viewer: ViewerLinks) -> list[Section]:
    """Return the comparison of each later run with the first, then the headline numbers side by side."""
    compared = [_difference(found, number, viewer) for number, found in enumerate(differences, 1)]
    return [*compared, _side_by_side(runs)]


def _side_by_side(runs: Sequence[Profile]) -> Section:
    names = list(dict.fromkeys(name for run in runs for name, _, _ in headlines(run)))
    found = [{name: (value, reach) for name, value, reach in headlines(run)} for run in runs]
    rows = [("coverage", *(measured(run.coverage) for run in runs))]
    for name in names:
        cells = [numbers.get(name, (NOTHING, NOTHING)) for numbers in found]
        rows.append((name, *(mark_partial(value, run.coverage) for (value, _), run in zip(cells, runs, strict=True))))
        if any(reach != NOTHING for _, reach in cells):
            rows.append(("  95% interval", *(reach for _, reach in cells)))
    head = ("", *(run.name for run in runs))
    text = ["Each number is over its run's own tasks, with its 95% interval."]
    if any(run.coverage.missing for run in runs):
        text.append("* Not all expected rollouts are measured; see the run's bounds.")
    return Section("Side by side", text, [Table(head, rows)], run_charts.side_by_side(runs))


def _difference(found: Difference, number: int, viewer: ViewerLinks) -> Section:
    title = f"{found.name} against {found.baseline}"
    if not found.tasks:
        return Section(title, list(found.notes))
    rows = _rows("", found)
    for one in found.datasets:
        rows += _rows(f"{one.name or '(no dataset)'}: ", one)
    text = [*found.notes, _counted(found)]
    if found.only_baseline or found.only_here:
        text.append(
            f"Excluded: {found.only_baseline:,} tasks measured only in {found.baseline} and {found.only_here:,} "
            f"measured only in {found.name}."
        )
    if found.identity:
        text.append("Differences between the runs: " + "; ".join(found.identity) + ".")
    tables = [Table(("", "difference", "95% interval, paired", "tasks"), rows)]
    for caption, changes in (("Largest gains", found.gained), ("Largest losses", found.lost)):
        if changes:
            tables.append(_changes(caption, found, changes))
    address = viewer.comparison(0, number) if viewer else ""
    links = [Link("all tasks, side by side", address)] if address else []
    return Section(title, text, tables, run_charts.difference_charts(found), links=links)


def _rows(prefix: str, found: Difference | DatasetDifference) -> list[tuple[str, ...]]:
    """Return the rows for solve rate and mean reward, omitting those that cannot be compared."""
    figures = ("solve rate", "points", " points", found.solve_rate), ("mean reward", "signed", "", found.reward)
    return [
        (f"{prefix}{name}", f"{FORMS[form](one.mean)}{unit}", interval(one, form), f"{found.tasks:,}")
        for name, form, unit, one in figures
        if one is not None
    ]


def _counted(found: Difference) -> str:
    over = "tasks" if found.sign_test_tasks == found.tasks else f"{found.sign_test_tasks:,} tasks"
    chance = "" if found.sign_test_p is None else f" (sign test over {over}: p = {found.sign_test_p:.2g})"
    return (
        f"By {found.outcome}, {found.better:,} tasks are better, {found.worse:,} worse, {found.equal:,} equal{chance}. "
        "Differences are means over the tasks of both runs, each with the same weight."
    )


def _changes(caption: str, found: Difference, changes: Sequence[Change]) -> Table:
    write = percent if found.solve_rate is not None else reward
    rows = [
        (
            f"{change.task}" + (f" ({change.task_here} in the other run)" if change.task != change.task_here else ""),
            *(write(change.before), write(change.after)),
        )
        for change in changes[:_LISTED]
    ]
    return Table(("task", found.baseline, found.name), rows, f"{caption}, by {found.outcome}")
