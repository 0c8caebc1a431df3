"""PlainFilter: the last line of defence. Nothing but the terminal's own driver may write a control character."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from rollyard.analysis.browse.text.visible import visible_line


class PlainFilter(LineFilter):
    """Makes all text of all widgets visible, also that of widgets which did not do so themselves."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.control or (segment.text.isascii() and segment.text.isprintable()) else _plain(segment)
            for segment in segments
        ]


def _plain(segment: Segment) -> Segment:
    return Segment(visible_line(segment.text), segment.style)
