"""The colours of the terminal pages, for dark and light backgrounds. They are those of the web viewer."""

from __future__ import annotations

from typing import Literal

from rich.style import Style
from rich.theme import Theme

from rollyard.records.types import Record

ThemeName = Literal["dark", "light"]


class Palette(Record):
    """Colours as hexadecimal numbers. Bold and reverse text carry the meaning where there are none (NO_COLOR)."""

    name: ThemeName
    ink: str
    paper: str
    soft: str
    rule: str
    raised: str
    chosen: str
    first: str
    second: str
    good: str
    bad: str
    thought: str
    result: str
    wall: str
    floor: str
    target: str
    box: str
    box_done: str
    player: str

    def style(self, colour: str, *, bold: bool = False, reverse: bool = False) -> Style:
        """Return the style of text in one of the colours, by the name of the field."""
        return Style(color=getattr(self, colour), bold=bold, reverse=reverse)

    @property
    def cursor(self) -> Style:
        """The style of the current line. Reverse text is what remains of it without colours."""
        return Style(bgcolor=self.chosen, bold=True)

    @property
    def markdown(self) -> Theme:
        """The styles with which Rich draws Markdown."""
        soft, strong = self.soft, f"bold {self.ink}"
        styles = {f"markdown.h{level}": strong for level in range(1, 8)}
        return Theme(
            {
                **styles,
                "markdown.code": self.result,
                "markdown.code_block": self.result,
                "markdown.block_quote": soft,
                "markdown.hr": self.rule,
                "markdown.item.bullet": self.first,
                "markdown.item.number": self.first,
                "markdown.link": self.first,
                "markdown.link_url": self.first,
                "markdown.table.border": self.rule,
                "markdown.table.header": strong,
            }
        )


DARK = Palette(
    name="dark",
    ink="#e6e9ed",
    paper="#14171b",
    soft="#a7b0bb",
    rule="#353b44",
    raised="#1d2127",
    chosen="#22314e",
    first="#7fa8f5",
    second="#f0a063",
    good="#74cf8d",
    bad="#ff9d94",
    thought="#bfa3f2",
    result="#63c9cf",
    wall="#596270",
    floor="#24221e",
    target="#ff9d94",
    box="#b98344",
    box_done="#3f8f58",
    player="#7fa8f5",
)
LIGHT = Palette(
    name="light",
    ink="#1b1f24",
    paper="#ffffff",
    soft="#545c66",
    rule="#d5d9df",
    raised="#f5f6f8",
    chosen="#e3ecfd",
    first="#2b62c9",
    second="#a84a0c",
    good="#1d6b34",
    bad="#b3261e",
    thought="#6a3fb0",
    result="#0b6a70",
    wall="#5c6470",
    floor="#f4efe6",
    target="#b3261e",
    box="#c98a3c",
    box_done="#3b8f55",
    player="#2b62c9",
)
