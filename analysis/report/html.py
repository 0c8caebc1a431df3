"""Renders the report as a single self-contained HTML page without scripts or external resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files

from rollyard.analysis.charts.svg import STYLE
from rollyard.analysis.metrics.profile_records import Profile
from rollyard.analysis.report.document import Report, document
from rollyard.analysis.report.formatting import NOTHING, ViewerLinks, mark_partial, measured
from rollyard.analysis.report.sections import Section, Table, headlines

_TILES = 4
_MAX_WIDTH = 62
"""Maximum row width, in characters, at which a table fits next to a chart."""


def html(report: Report, viewer: ViewerLinks | str = "") -> str:
    title, sections = document(report, viewer)
    single = len(report.runs) == 1
    tiles = _tiles(report.runs[0]) if single else ""
    file = f'<p class="file">{escape(report.runs[0].path)}</p>' if single else ""
    return page(title, sections, f"Written by ng_reward_profile, rollyard {report.version}.", file + tiles)


def page(title: str, sections: Sequence[Section], footer: str, header: str = "") -> str:
    """Render a page. `header` is HTML below the title."""
    style = (files("rollyard.analysis.report") / "page.css").read_text(encoding="utf-8") + STYLE.read_text(
        encoding="utf-8"
    )
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
    shown = [(name, value, reach) for name, value, reach in headlines(profile) if name != "median reward"][:_TILES]
    tiles = ""
    for name, value, reach in shown:
        large, _, rest = value.partition(" ")
        reach = "" if reach == NOTHING else f"95% interval {reach}"
        lines = filter(None, [rest, reach, measured(profile.coverage)])
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
    drawn = _row_of(
        "figures",
        [f"<figure>{chart.svg}<figcaption>{escape(chart.caption)}</figcaption></figure>" for chart in section.charts],
    )
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
