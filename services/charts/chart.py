"""The record of a chart: its SVG, caption, and numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rollyard.services.charts.svg import Svg
from rollyard.services.types import Record


class ChartLink(Record):
    """A link in a chart's caption."""

    text: str
    href: str


class NumberRow(Record):
    """A row of a chart's table; the first cell is its name."""

    cells: list[str]
    href: str | None = None
    """The link of the row's mark."""


class NumberTable(Record):
    head: list[str]
    rows: list[NumberRow]


class Chart(Record):
    """A chart. All text fields are unescaped, except `svg`, which is markup whose text is escaped."""

    name: str
    """The chart's identifier."""
    title: str
    svg: str
    caption: str
    """A sentence that describes the chart."""
    links: list[ChartLink] = Field(default_factory=list)
    """Shown after the caption."""
    numbers: NumberTable | None = None


class Charts(Record):
    """Charts that belong together."""

    charts: list[Chart]


def table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], str | None]]) -> NumberTable:
    """Build a table from rows of (cells, href)."""
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
