"""Chart: a drawing with its caption, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rollyard.services.charts.svg import Svg
from rollyard.services.types import Record


class ChartLink(Record):
    """A place to go from a chart's caption."""

    text: str
    href: str


class NumberRow(Record):
    """The first cell names the row."""

    cells: list[str]
    href: str | None = None
    """Where the mark of this row leads."""


class NumberTable(Record):
    """A chart's numbers."""

    head: list[str]
    rows: list[NumberRow]


class Chart(Record):
    """Texts are plain; `svg` is markup in which every text is escaped."""

    name: str
    """Which chart it is, for programs."""
    title: str
    svg: str
    caption: str
    """What it shows, in a sentence."""
    links: list[ChartLink] = Field(default_factory=list)
    """After the caption."""
    numbers: NumberTable | None = None


class Charts(Record):
    """Charts that belong together."""

    charts: list[Chart]


def table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], str | None]]) -> NumberTable:
    """A chart's numbers from (cells, href)."""
    return NumberTable(head=list(head), rows=[NumberRow(cells=list(cells), href=href) for cells, href in rows])


def chart(
    name: str,
    title: str,
    svg: Svg,
    caption: str,
    numbers: NumberTable | None = None,
    links: Sequence[ChartLink] = (),
) -> Chart:
    """A chart of checked markup."""
    return Chart(name=name, title=title, svg=svg, caption=caption, numbers=numbers, links=list(links))
