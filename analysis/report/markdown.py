"""Renders the report as Markdown, for terminals, pull requests and model cards."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollyard.analysis.report.document import Report, document
from rollyard.analysis.report.formatting import ViewerLinks
from rollyard.analysis.report.sections import Section, Table

_SPECIAL = re.compile(r"([\\`*\[\]<>|~])|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown(report: Report, viewer: ViewerLinks | str = "") -> str:
    """Render the report's text and tables. Charts are represented by their captions."""
    title, sections = document(report, viewer)
    file = f"File: {report.runs[0].path}" if len(report.runs) == 1 else ""
    return page(title, sections, f"Written by ng_reward_profile, rollyard {report.version}.", file)


def page(title: str, sections: Sequence[Section], footer: str, subtitle: str = "") -> str:
    """Render a title, sections and a footer."""
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
    for chart in section.charts:
        lines += [f"*{escaped(chart.caption)}*", ""]
    for content in section.tables:
        lines += table(content)
    for part in section.parts:
        _write(part, level + 1, lines)
