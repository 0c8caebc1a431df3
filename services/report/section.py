"""Section: a heading with words, tables and charts. Plain text throughout; whoever writes it down escapes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollyard.services.charts.chart import Chart


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column is what a row is called."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    text: list[str] = field(default_factory=list)
    """Paragraphs."""
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    parts: list[Section] = field(default_factory=list)
