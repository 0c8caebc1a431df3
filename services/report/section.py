"""A report section: a heading with text, tables and charts. All text is plain; renderers escape it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollyard.services.charts.chart import Chart


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column contains the row's name."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading with its content."""

    title: str
    text: list[str] = field(default_factory=list)
    """Paragraphs."""
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    parts: list[Section] = field(default_factory=list)
