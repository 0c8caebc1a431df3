"""Defines the record of a chart: its SVG, its caption, and its data as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rollyard.analysis.charts.svg import Svg
from rollyard.records.types import Record


class ChartLink(Record):
    """A link in a chart's caption."""

    text: str
    href: str


class NumberRow(Record):
    """A row in a chart's data table. The first cell contains the row's name."""

    cells: list[str]
    href: str | None = None
    """URL that the corresponding mark in the chart links to."""


class NumberTable(Record):
    head: list[str]
    rows: list[NumberRow]


class Chart(Record):
    """A chart. `svg` is safe markup; all other text fields are plain text that must be escaped."""

    name: str
    """Identifies the kind of chart, such as `pass_at`."""
    title: str
    svg: str
    caption: str
    """A sentence that describes what the chart shows."""
    links: list[ChartLink] = Field(default_factory=list)
    """Links shown after the caption."""
    numbers: NumberTable | None = None


class Charts(Record):
    """A response that contains several charts."""

    charts: list[Chart]


def table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], str | None]]) -> NumberTable:
    """Build a table from (cells, href) pairs, one per row."""
    return NumberTable(head=list(head), rows=[NumberRow(cells=list(cells), href=href) for cells, href in rows])


def chart(
    name: str,
    title: str,
    svg: Svg,
    caption: str,
    numbers: NumberTable | None = None,
    links: Sequence[ChartLink] = (),
) -> Chart:
    """Build a chart from escaped markup."""
    return Chart(name=name, title=title, svg=svg, caption=caption, numbers=numbers, links=list(links))
