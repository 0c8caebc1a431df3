"""Defines a report section: a heading with text, tables and charts. All text is plain; renderers must escape it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollyard.analysis.charts.chart import Chart


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
    """A heading and the content below it."""

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
