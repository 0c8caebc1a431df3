"""NoColour: what remains of a page when NO_COLOR is set. Chosen lines become reverse text."""

from __future__ import annotations

from collections.abc import Collection

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

_REVERSE = Style(reverse=True)


class NoColour(LineFilter):
    """Removes all colours."""

    def __init__(self, chosen: Collection[str]) -> None:
        """`chosen`: the background colours that mark something as chosen, as hexadecimal numbers."""
        super().__init__()
        self._chosen = frozenset(chosen)

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.style is None else Segment(segment.text, self._plain(segment.style), segment.control)
            for segment in segments
        ]

    def _plain(self, style: Style) -> Style:
        is_chosen = style.bgcolor is not None and style.bgcolor.get_truecolor().hex in self._chosen
        return style.without_color + _REVERSE if is_chosen else style.without_color
