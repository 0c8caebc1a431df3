"""BlockView: scrolls over blocks, which are set one after another, so that a long page begins to show at once."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rollyard.analysis.browse.blocks.block import Block, SetBlock, set_block
from rollyard.analysis.browse.palette import DARK, Palette
from rollyard.analysis.browse.text.typesetter import Typesetter

_BUSY_S = 0.02
"""How long blocks are set before keys are handled."""
Glyphs = Mapping[str, Style]


class BlockView(ScrollView, can_focus=True):
    """Shows blocks, one of which is current."""

    class Moved(Message):
        """Another block has become current."""

        def __init__(self, block: Block) -> None:
            super().__init__()
            self.block = block

    class Matched(Message):
        """A match of the search has become current: its number, from 1, and how many there are."""

        def __init__(self, number: int, count: int) -> None:
            super().__init__()
            self.number, self.count = number, count

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.palette: Palette = DARK
        self.blocks: Sequence[Block] = ()
        self.current = 0
        self.original = False
        self.find = ""
        self._glyphs: Glyphs = {}
        self._width = 0
        self._setter = Typesetter(self._width, self.palette)
        self._set: list[SetBlock] = []
        self._starts: list[int] = [0]
        self._open: set[int] = set()
        self._match: tuple[int, int] | None = None
        self._seeking = False

    @property
    def is_complete(self) -> bool:
        """Whether all blocks have been set."""
        return len(self._set) == len(self.blocks)

    def show(self, blocks: Sequence[Block], palette: Palette, glyphs: Glyphs | None = None, *, find: str = "") -> None:
        """Show other blocks, from the first one on."""
        self.blocks, self.palette, self._glyphs, self.find = blocks, palette, glyphs or {}, find
        self.current, self._match = 0, None
        self._open.clear()
        self.scroll_to(0, 0, animate=False)
        self.lay_out()

    def repaint(self, palette: Palette, glyphs: Glyphs | None = None) -> None:
        """Use other colours."""
        self.palette, self._glyphs = palette, glyphs or {}
        self.lay_out()

    def lay_out(self) -> None:
        """Set all blocks again, because their width, colours or form has changed."""
        self._set, self._starts = [], [0]
        self._width = self.size.width
        self._setter = Typesetter(self._width, self.palette, self._glyphs)
        self._measure()
        if self._width:
            self._set_all()

    @work(exclusive=True, group="setting")
    async def _set_all(self) -> None:
        anchor = self.current
        started = time.monotonic()
        while not self.is_complete:
            self._append()
            if time.monotonic() - started > _BUSY_S:
                self._measure()
                await asyncio.sleep(0)
                started = time.monotonic()
        self._measure()
        if self._seeking:
            self.next_match(1)
        elif anchor:
            self._reveal(anchor)

    def _append(self) -> None:
        at = len(self._set)
        found = self._set_one(at)
        self._set.append(found)
        self._starts.append(self._starts[-1] + len(found.strips))

    def _set_one(self, at: int) -> SetBlock:
        return set_block(
            self.blocks[at], self._setter, is_open=at in self._open, original=self.original, find=self.find
        )

    def _measure(self) -> None:
        self.virtual_size = Size(self._width, self._starts[-1])
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        if self.size.width != self._width:
            self.lay_out()

    def render_line(self, y: int) -> Strip:
        width, line = self.size.width, y + self.scroll_offset.y
        if line >= self._starts[-1]:
            return Strip.blank(width, self.rich_style)
        at = bisect_right(self._starts, line) - 1
        strip = self._set[at].strips[line - self._starts[at]]
        if at == self.current and line == self._starts[at]:
            strip = strip.extend_cell_length(width).apply_style(self.palette.cursor)
        if self.find:
            strip = _marked(strip, self.find, Style(reverse=True))
        return strip.crop_extend(0, width, None).apply_style(self.rich_style).simplify()

    def on_click(self, event: events.Click) -> None:
        line = event.y + self.scroll_offset.y
        if line < self._starts[-1]:
            self.go(bisect_right(self._starts, line) - 1)

    def move(self, by: int) -> None:
        """Make another block current."""
        self.go(self.current + by)

    def go(self, at: int, *, quietly: bool = False) -> None:
        """Make a block current and scroll to it. `quietly`: without the message `Moved`."""
        if not self.blocks:
            return
        self.current = max(0, min(at, len(self.blocks) - 1))
        self._reveal(self.current)
        if not quietly:
            self.post_message(self.Moved(self.blocks[self.current]))

    def toggle(self) -> None:
        """Open or shorten the current block."""
        if not self.is_complete:
            return
        self._open ^= {self.current}
        self._set[self.current] = self._set_one(self.current)
        self._starts = [0, *accumulate(len(one.strips) for one in self._set)]
        self._measure()

    def search(self, text: str) -> None:
        """Mark the matches of a text, and go to the first one."""
        self.find, self._match, self._seeking = text, None, bool(text)
        self.lay_out()

    def matches(self) -> list[tuple[int, int]]:
        """Return the block and the line within it of each match."""
        wanted = self.find.casefold()
        return [
            (at, line)
            for at, one in enumerate(self._set)
            for line, strip in enumerate(one.strips)
            if wanted and wanted in strip.text.casefold()
        ]

    def next_match(self, by: int) -> None:
        """Go to the next or previous match, as soon as all blocks are set."""
        self._seeking = not self.is_complete
        found = self.matches()
        if self._seeking or not found:
            self.post_message(self.Matched(0, len(found)))
            return
        if self._match in found:
            at = (found.index(self._match) + by) % len(found)
        else:
            here = [place for place, (block, _) in enumerate(found) if block >= self.current]
            at = here[0] if here and by > 0 else len(found) - 1
        self._match = found[at]
        block, line = found[at]
        self.go(block)
        self._reveal_line(self._starts[block] + line)
        self.post_message(self.Matched(at + 1, len(found)))

    def _reveal(self, at: int) -> None:
        if at >= len(self._set):
            return
        start, end, height = self._starts[at], self._starts[at + 1], self.size.height
        top = self.scroll_offset.y
        if start < top or end > top + height:
            self.scroll_to(y=start, animate=False)
        self.refresh()

    def _reveal_line(self, line: int) -> None:
        if not self.scroll_offset.y <= line < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=max(0, line - self.size.height // 3), animate=False)
        self.refresh()


def _marked(strip: Strip, find: str, style: Style) -> Strip:
    """Return the strip with the matches of `find` in the style."""
    text, wanted = strip.text.casefold(), find.casefold()
    if wanted not in text or len(text) != len(strip.text):
        return strip
    in_match = [False] * len(text)
    at = text.find(wanted)
    while at >= 0:
        in_match[at : at + len(wanted)] = [True] * len(wanted)
        at = text.find(wanted, at + len(wanted))
    segments: list[Segment] = []
    place = 0
    for segment in strip:
        for letter in segment.text:
            base = segment.style or Style()
            segments.append(Segment(letter, base + style if in_match[place] else segment.style))
            place += 1
    return Strip(segments).simplify()
