"""Markdown: a report for a terminal, a pull request, a model card."""

from __future__ import annotations

import re

from rollyard.services.report.document import Report, document
from rollyard.services.report.section import Section, Table

_SPECIAL = re.compile(r"([\\`*\[\]<>|~])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown(report: Report) -> str:
    """All of it, in words and tables; the charts' captions say what they show."""
    title, sections = document(report)
    lines = [f"# {escaped(title)}", ""]
    if len(report.runs) == 1:
        lines += [f"File: {escaped(report.runs[0].path)}", ""]
    for section in sections:
        _write(section, 2, lines)
    lines += ["---", "", f"Made by ng_reward_profile, rollyard {report.version}.", ""]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """`text` as itself: no markup, on one line."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", " ".join(text.split()))


def table(made: Table) -> list[str]:
    """A table's lines."""
    lines = [f"{escaped(made.caption)}:", ""] if made.caption else []
    lines.append(f"| {' | '.join(map(escaped, made.head))} |")
    lines.append(f"|{'|'.join(['---'] + ['---:'] * (len(made.head) - 1))}|")
    lines += [f"| {' | '.join(map(escaped, row))} |" for row in made.rows]
    return [*lines, ""]


def _write(section: Section, level: int, lines: list[str]) -> None:
    lines += [f"{'#' * level} {escaped(section.title)}", ""]
    for paragraph in section.text:
        lines += [escaped(paragraph), ""]
    for chart in section.charts:
        lines += [f"*{escaped(chart.caption)}*", ""]
    for made in section.tables:
        lines += table(made)
    for part in section.parts:
        _write(part, level + 1, lines)
