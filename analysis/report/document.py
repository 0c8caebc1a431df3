"""Report, the contents of profile.json, and the document made of it: title, sections, description of the methods."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from pydantic import Field

from rollyard.analysis.charts.charts import Chart, HeatRow, chart, heat_map
from rollyard.analysis.charts.curves import figure_text, figure_title, step_chart
from rollyard.analysis.charts.svg import STYLE, short
from rollyard.analysis.charts.svg import share as short_share
from rollyard.analysis.findings.detector import Findings
from rollyard.analysis.metrics.comparison import Difference
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.metrics.run_pair import REWARD, SOLVE_RATE
from rollyard.analysis.metrics.training_steps import LOG_PROB, ZERO_VARIANCE, SeriesProfile, TaskResults, evenly
from rollyard.analysis.report import comparison_report as run_comparison
from rollyard.analysis.report import sections as run_sections
from rollyard.analysis.report.comparison_report import chance, change, reach, value, verdict
from rollyard.analysis.report.formatting import NOTHING, ViewerLinks, mark_partial, measured
from rollyard.analysis.report.sections import Section, Table, compared_findings, findings_section, headlines
from rollyard.records.terminal import pluralize
from rollyard.records.types import Record

_MAX_ROWS = 40
_IN_TABLE = (SOLVE_RATE, REWARD, "output_tokens", LOG_PROB, ZERO_VARIANCE)
_MAX_FIGURES = 4
_ALPHA = 0.05
_PAIRED = {
    "content": "content (_ng_task_key)",
    "prompt": "prompt and tools",
    "index": "index, because all manifests state the same input",
}


def sections(series: SeriesProfile) -> list[Section]:
    """Return the sections of a series, most important first."""
    return [_curves(series), _changed(series), _tasks(series)]


def _curves(series: SeriesProfile) -> Section:
    steps = series.steps
    text = [
        f"{pluralize(len(steps), 'step')}, from {steps[0].step:,} to {steps[-1].step:,}. Bands are 95% intervals, "
        "clustered by task.",
        *series.notes,
    ]
    charts = []
    for name in series.figures:
        drawn = step_chart(name, {one.step: one.figures[name] for one in steps if name in one.figures}, {})
        # The report shows no other titles of charts.
        charts.append(drawn.model_copy(update={"caption": f"{drawn.title}: {drawn.caption}"}))
    shown = [name for name in _IN_TABLE if name in series.figures][:_MAX_FIGURES]
    rows = [
        (
            *(f"{one.step:,}", one.name, f"{one.rollouts:,}"),
            *(figure_text(name, one.figures[name]) if name in one.figures else NOTHING for name in shown),
        )
        for one in (steps[at] for at in evenly(len(steps), _MAX_ROWS))
    ]
    caption = f"{_MAX_ROWS} of {len(steps):,} steps, all in profile.json" if len(steps) > _MAX_ROWS else ""
    table = Table(("step", "file", "rollouts", *map(figure_title, shown)), rows, caption)
    return Section("Steps", text, [table], charts)


def _changed(series: SeriesProfile) -> Section:
    found, steps = series.changes, series.steps
    title = f"Learned and forgotten from step {steps[0].step:,} to step {steps[-1].step:,}"
    if found.difference is None:
        return Section(title, [f"The steps cannot be compared: {found.why_not}."])
    one = found.difference
    text = [
        f"{pluralize(one.tasks, 'task')} in both, paired by {_PAIRED[found.by]}: {found.learned:,} better, "
        f"{found.forgotten:,} worse. {figure_title(found.metric)}: {change(one.metric, one.difference)}, 95% interval "
        f"{reach(one)}. " + verdict(one, _ALPHA).replace("The candidate", "The last step")
    ]
    head = ("task", f"step {steps[0].step:,}", f"step {steps[-1].step:,}", "change", "rollouts", "p of the task")
    tables = []
    for name, tasks, total in (
        ("Learned", found.most_learned, found.learned),
        ("Forgotten", found.most_forgotten, found.forgotten),
    ):
        rows = [
            (
                *(str(task.task), value(found.metric, task.first), value(found.metric, task.second)),
                *(change(found.metric, task.second - task.first), " and ".join(f"{one:,}" for one in task.rollouts)),
                chance(task.p),
            )
            for task in tasks
        ]
        more = "" if len(tasks) == total else f": {len(tasks)} of {total:,}"
        if rows:
            tables.append(Table(head, rows, f"{name}, largest change first{more}"))
    return Section(title, text, tables)


def _tasks(series: SeriesProfile) -> Section:
    if series.why_not_paired:
        return Section("Tasks by steps", [f"Tasks cannot be paired: {series.why_not_paired}."])
    text = [
        f"{pluralize(series.tasks, 'task')}, paired by {_PAIRED[series.paired_by]}. Rows are tasks, columns steps; "
        "darker cells have a higher value."
    ]
    if len(series.columns) < len(series.steps):
        text.append(f"{len(series.columns)} of {len(series.steps):,} steps are shown.")
    each = ("gains", "Largest gains", series.gains), ("losses", "Largest losses", series.losses)
    charts = [_map(series, tasks, name, title) for name, title, tasks in each if tasks]
    if not charts:
        text.append("No task has another value at the end than at the start.")
    return Section("Tasks by steps", text, charts=charts)


def _map(series: SeriesProfile, tasks: Sequence[TaskResults], name: str, title: str) -> Chart:
    is_share = series.value == SOLVE_RATE
    known = [amount for one in tasks for amount in one.values if amount is not None]
    low, high = (0.0, 1.0) if is_share else (min(known), max(known))

    def tip(task: int, step: int, amount: float) -> str:
        return f"task {task}, step {step:,}: {short_share(amount) if is_share else short(amount)}"

    rows: list[HeatRow] = []
    for one in tasks:
        cells = [
            None if amount is None else ((amount - low) / (high - low or 1.0), tip(one.task, step, amount))
            for step, amount in zip(series.columns, one.values, strict=True)
        ]
        rows.append((str(one.task), cells))
    span = "0% to 100%" if is_share else f"{short(low)} to {short(high)}"
    caption = f"{title}: {'solve rates' if is_share else 'mean rewards'} of {pluralize(len(tasks), 'task')}, {span}."
    columns = [f"{step:,}" for step in series.columns]
    drawn = heat_map(f"{caption} Rows are tasks, columns steps.", columns, rows, "task")
    return chart(f"tasks_{name}", title, drawn, caption)


SCHEMA_VERSION = 2
"""Of `schemas/profile-N.json`. It grows when a field is removed, renamed or gets another meaning."""


class Report(Record):
    version: str
    """The version of Rollyard that wrote the file."""
    schema_version: int = SCHEMA_VERSION
    runs: list[Profile]
    differences: list[Difference]
    """The difference between each later run and the first."""
    findings: list[Findings | None] = Field(default_factory=list)
    """What stands out in each of the runs, in their order; None for a run whose findings were not computed."""
    series: SeriesProfile | None = None
    """The files as steps of a series; `runs` are then those of the first and the last step."""


METHOD = (
    "Interval: mean ± t(tasks − 1) · standard error, clustered by task, because repeats of one task are not "
    "independent samples (Miller 2024, arXiv:2411.00640). It is valid for unequal numbers of repeats.",
    "If every task has the same value, there is no standard error. A share of 0 or 100% then has the exact one-sided "
    "95% bound from the number of tasks, 1 − 0.05^(1/tasks), about 3/tasks (Hanley & Lippman-Hand 1983); any other "
    "share has Wilson's interval (1927) with each task as one trial; a mean reward has none.",
    "pass@k = 1 − C(n−c, k) / C(n, k) with c of n rollouts solved (Chen et al. 2021, arXiv:2107.03374); pass^k = "
    "C(c, k) / C(n, k) (Yao et al. 2024, arXiv:2406.12045); means over tasks.",
    "cons@k = the share of all subsets of k rollouts of a task whose most common extracted_answer is right, counted "
    "exactly; the answer that occurs first wins a tie, and rollouts without an answer vote for one common answer (the "
    "definition of NeMo-RL; the idea is self-consistency, Wang et al. 2022, arXiv:2203.11171). Mean over tasks.",
    "Tool calls: the items of type function_call in response.output; their correlation with the reward is Pearson's.",
    "Turns: the model calls in timings; without them, the uninterrupted sequences of model items in response.output.",
    "Rollouts without a finite reward and masked ones (mask_sample, failure_kind) are failures and not in the means.",
)


def document(report: Report, viewer: ViewerLinks | str = "") -> tuple[str, list[Section]]:
    """Return the title and the sections. With several runs, the series or comparison comes first, then the findings of
    all, then a folded section for each run. `viewer`: what to link to; an address if it shows the same files in order.
    """
    links = ViewerLinks(viewer) if isinstance(viewer, str) else viewer
    runs = report.runs
    several = len(runs) > 1
    method = Section("How the numbers are computed", list(METHOD), is_folded=several)
    if not several:
        return f"Reward profile: {runs[0].name}", [*_run_sections(report, 0, links), method]
    parts = [
        Section(run.name, [f"File: {run.path}"], parts=_run_sections(report, number, links), is_folded=True)
        for number, run in enumerate(runs)
    ]
    title = f"Reward profiles: {', '.join(run.name for run in runs)}"
    series: list[Section] = []
    if report.series is not None:
        title = f"Series of {len(report.series.steps):,} steps, from {runs[0].name} to {runs[-1].name}"
        series = sections(report.series)
    comparison = run_comparison.sections(runs, report.differences, links)
    found = compared_findings(runs, report.findings, links)
    return title, [*series, *comparison, *found, *parts, method]


def _run_sections(report: Report, number: int, links: ViewerLinks) -> list[Section]:
    found = report.findings[number] if number < len(report.findings) else None
    first = [] if found is None else [findings_section(found, number, links)]
    return [*first, *run_sections.sections(report.runs[number])]


_SPECIAL = re.compile(r"([\\`*\[\]<>|~])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown(report: Report, viewer: ViewerLinks | str = "") -> str:
    """Render the report. Charts are represented by their captions."""
    title, sections = document(report, viewer)
    file = f"File: {report.runs[0].path}" if len(report.runs) == 1 else ""
    return markdown_page(title, sections, f"Written by ng_reward_profile, rollyard {report.version}.", file)


def markdown_page(title: str, sections: Sequence[Section], footer: str, subtitle: str = "") -> str:
    lines = [f"# {escaped(title)}", ""]
    if subtitle:
        lines += [escaped(subtitle), ""]
    for section in sections:
        _write(section, 2, lines)
    lines += ["---", "", footer, ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Escape `text` so that it is displayed verbatim on one line."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))


def table(content: Table) -> list[str]:
    lines = [f"{escaped(content.caption)}:", ""] if content.caption else []
    lines.append(f"| {' | '.join(map(escaped, content.head))} |")
    lines.append(f"|{'|'.join(['---'] + ['---:'] * (len(content.head) - 1))}|")
    lines += [f"| {' | '.join(map(escaped, row))} |" for row in content.rows]
    return [*lines, ""]


def _write(section: Section, level: int, lines: list[str]) -> None:
    lines += [f"{'#' * level} {escaped(section.title)}", ""]
    for paragraph in section.text:
        lines += [escaped(paragraph), ""]
    if section.links:
        lines += ["; ".join(f"[{escaped(link.text)}](<{link.href}>)" for link in section.links), ""]
    lines += [line for figure in section.charts for line in (f"*{escaped(figure.caption)}*", "")]
    for content in section.tables:
        lines += table(content)
    for part in section.parts:
        _write(part, level + 1, lines)


_TILES = 4
_MAX_WIDTH = 62
"""Maximum row width, in characters, at which a table fits next to a chart."""


def html(report: Report, viewer: ViewerLinks | str = "") -> str:
    title, sections = document(report, viewer)
    single = len(report.runs) == 1
    tiles = _tiles(report.runs[0]) if single else ""
    file = f'<p class="file">{escape(report.runs[0].path)}</p>' if single else ""
    return html_page(title, sections, f"Written by ng_reward_profile, rollyard {report.version}.", file + tiles)


def html_page(title: str, sections: Sequence[Section], footer: str, header: str = "") -> str:
    """Render a page. `header` is HTML below the title."""
    page = files("rollyard.analysis.report") / "page.css"
    style = page.read_text(encoding="utf-8") + STYLE.read_text(encoding="utf-8")
    body = "".join(_section(section, 2) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # Text from rollouts is escaped. As a second line of defence, the browser must not run scripts or send requests.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<header>"
        f"<h1>{escape(title)}</h1>{header}</header>\n<main>\n{body}</main>\n"
        f"<footer>{escape(footer)}</footer>\n</body>\n</html>\n"
    )


def _tiles(profile: Profile) -> str:
    """Render the first headline numbers in large type."""
    shown = [headline for headline in headlines(profile) if headline[0] != "median reward"][:_TILES]
    tiles = ""
    for name, figure, extent in shown:
        large, _, rest = figure.partition(" ")
        interval = "" if extent == NOTHING else f"95% interval {extent}"
        lines = filter(None, [rest, interval, measured(profile.coverage)])
        large = escape(mark_partial(large, profile.coverage))
        tiles += (
            f'<div class="tile"><dt>{escape(name)}</dt><dd class="large">{large}</dd>'
            f"{''.join(f'<dd>{escape(line)}</dd>' for line in lines)}</div>"
        )
    return f'<dl class="tiles">{tiles}</dl>'


def _section(section: Section, level: int) -> str:
    inner = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in section.text)
    if section.links:
        links = (f'<a href="{escape(link.href)}">{escape(link.text)}</a>' for link in section.links)
        inner += f'<p class="links">{"; ".join(links)}</p>'
    figures = [f"<figure>{one.svg}<figcaption>{escape(one.caption)}</figcaption></figure>" for one in section.charts]
    drawn = _row_of("figures", figures)
    tables = _row_of("tables", [_table(table) for table in section.tables])
    if drawn and tables and max(map(_letters, section.tables)) <= _MAX_WIDTH:
        inner += f'<div class="beside"><div>{drawn}</div><div>{tables}</div></div>'
    else:
        inner += drawn + tables
    inner += "".join(_section(part, level + 1) for part in section.parts)
    heading = f"<h{level}>{escape(section.title)}</h{level}>"
    if section.is_folded:
        return f"<details><summary>{heading}</summary>{inner}</details>\n"
    return f"<section>{heading}{inner}</section>\n"


def _row_of(name: str, parts: list[str]) -> str:
    """Put several parts next to each other, as far as there is space."""
    return "".join(parts) if len(parts) < 2 else f'<div class="{name}">{"".join(parts)}</div>'


def _letters(table: Table) -> int:
    """Return the width of a table in characters, including cell padding."""
    return sum(2 + max(map(len, column)) for column in zip(table.head, *table.rows, strict=True))


def _table(table: Table) -> str:
    caption = f"<caption>{escape(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' if cell else "<td></td>" for cell in table.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    # Focusable by keyboard, because it scrolls horizontally on narrow screens.
    name = escape(table.caption or table.head[0] or "numbers")
    return (
        f'<div class="table" role="group" aria-label="{name}" tabindex="0"><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
