"""RolloutTable: scrolls over any number of rollouts. Only those on the screen are drawn, and only their rows read."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events, work
from textual.binding import BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rollyard.analysis.browse.list.columns import Shown, line_text, names_of, shown_columns
from rollyard.analysis.browse.list.rollout_source import Listed, RolloutSource
from rollyard.analysis.browse.palette import DARK, Palette
from rollyard.analysis.browse.parts.bindings import bindings
from rollyard.analysis.viewer.api_records import RolloutLine
from rollyard.analysis.viewer.fields import PROMPT
from rollyard.records.expressions.parse import ExpressionError

_HEADER = 1
_GAP = 2
_AHEAD = 20
"""Number of lines beyond the screen whose fields are read, too."""
_BATCH = 20
"""Number of rows that are read before the lines are drawn again."""
_SIDEWAYS = 12
_TASK = Shown("task", "task", is_number=True)


class RolloutTable(ScrollView, can_focus=True):
    """The task is always visible at the left; the other columns scroll."""

    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "j,down": "move(1)",
            "k,up": "move(-1)",
            "n,pagedown": "page(1)",
            "p,pageup": "page(-1)",
            "home": "ends(False)",
            "end,G": "ends(True)",
            "left": "sideways(-1)",
            "right": "sideways(1)",
            "enter": "open",
        },
    )

    class Opened(Message):
        """The user wants to see a rollout."""

        def __init__(self, at: int) -> None:
            super().__init__()
            self.at = at

    class HeaderClicked(Message):
        """The user wants to sort by a column."""

        def __init__(self, path: str) -> None:
            super().__init__()
            self.path = path

    class Unreadable(Message):
        """The fields of the lines cannot be read."""

        def __init__(self, reason: str) -> None:
            super().__init__()
            self.reason = reason

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.palette: Palette = DARK
        self.cursor = 0
        self.columns = ""
        self.sort = "task"
        self.listed: Listed | None = None
        self._source: RolloutSource | None = None
        self._shown: list[Shown] = []
        self._widths: dict[str, int] = {}
        self._texts: dict[int, list[str]] = {}
        self._unreadable = ""

    def show(self, source: RolloutSource, listed: Listed, columns: str, sort: str) -> None:
        """Show these rollouts. The cursor stays at its rollout, if it is listed."""
        here = self.current_line()
        if source is not self._source or columns != self.columns:
            self._widths, self._unreadable = {}, ""
        self._source, self.listed, self.columns, self.sort = source, listed, columns, sort
        place = listed.find(here.task, here.repeat) if here else None
        self.cursor = place or 0
        self._lay_out()
        self._keep_cursor_visible()
        self._read()

    def current_line(self) -> RolloutLine | None:
        """Return the rollout at the cursor; None if the list is empty."""
        return self.listed.line(self.cursor) if self.listed is not None and self.cursor < len(self.listed) else None

    def move_to(self, at: int) -> None:
        """Move the cursor."""
        if self.listed is None or not len(self.listed):
            return
        self.cursor = max(0, min(at, len(self.listed) - 1))
        self._keep_cursor_visible()
        self._read()
        self.refresh()

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(1, self._rows - 1))

    def action_ends(self, last: bool) -> None:
        self.move_to(len(self.listed or ()) - 1 if last else 0)

    def action_sideways(self, by: int) -> None:
        self.scroll_to(x=max(0, self.scroll_offset.x + by * _SIDEWAYS), animate=False)

    def action_open(self) -> None:
        if self.listed is not None and self.cursor < len(self.listed):
            self.post_message(self.Opened(self.cursor))

    @property
    def _rows(self) -> int:
        """Number of rollouts that fit on the screen."""
        return max(1, self.scrollable_content_region.height - _HEADER)

    def _keep_cursor_visible(self) -> None:
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= top + self._rows:
            self.scroll_to(y=self.cursor - self._rows + 1, animate=False, immediate=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._read()

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()
        self._keep_cursor_visible()
        self._read()

    def _read(self) -> None:
        """Read the fields of the lines on the screen, if they have not been read."""
        source, listed = self._source, self.listed
        if source is None or listed is None or self._unreadable:
            return
        first = max(0, round(self.scroll_y) - _AHEAD)
        last = min(len(listed), first + self._rows + 2 * _AHEAD)
        if any(source.fields(listed, at, self.columns) is None for at in range(first, last)):
            self._read_fields(source, listed, self.columns, first, last - first)

    @work(exclusive=True, group="fields")
    async def _read_fields(self, source: RolloutSource, listed: Listed, columns: str, first: int, count: int) -> None:
        top = round(self.scroll_y)
        for start in sorted(range(first, first + count, _BATCH), key=lambda start: start + _BATCH <= top):
            try:
                await asyncio.to_thread(source.read, listed, columns, start, _BATCH)
            except (ExpressionError, OSError) as error:
                self._unreadable = str(error)
                self.post_message(self.Unreadable(str(error)))
                return
            self._lay_out()

    def _lay_out(self) -> None:
        """Choose the columns, widen those with longer texts, and draw."""
        source, listed = self._source, self.listed
        if source is None or listed is None:
            return
        self._shown = shown_columns(names_of(self.columns), source.heads(self.columns))
        self._texts.clear()
        first = max(0, round(self.scroll_y) - _AHEAD)
        for at in range(first, min(len(listed), first + self._rows + 2 * _AHEAD)):
            for column, text in zip([_TASK, *self._shown], self._texts_of(at), strict=True):
                self._widen(column, text)
        for column in [_TASK, *self._shown]:
            self._widen(column, self._title(column))
        width = self._task_width + sum(self._widths[column.path] + _GAP for column in self._shown)
        self.virtual_size = Size(width, len(listed) + _HEADER)
        self.refresh()

    def _widen(self, column: Shown, text: str) -> None:
        most = max(column.max_width // 2, self.size.width // 4) if column.path == PROMPT else column.max_width
        width = min(cell_len(text), most)
        self._widths[column.path] = max(self._widths.get(column.path, 0), width)

    @property
    def _task_width(self) -> int:
        return self._widths.get("task", 4) + 2

    def _texts_of(self, at: int) -> list[str]:
        assert self.listed is not None and self._source is not None
        if at not in self._texts:
            line, cells = self.listed.line(at), self._source.fields(self.listed, at, self.columns)
            self._texts[at] = [line_text(column, line, cells) for column in [_TASK, *self._shown]]
        return self._texts[at]

    def _title(self, column: Shown) -> str:
        if self.sort.removeprefix("-") != column.path:
            return column.title
        return f"{column.title}{'▼' if self.sort.startswith('-') else '▲'}"

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        at = y - _HEADER + self.scroll_offset.y
        if self.listed is None or at >= len(self.listed):
            return Strip.blank(width, self.rich_style)
        columns = [_TASK, *self._shown]
        if y < _HEADER:
            style = self.palette.style("soft", bold=True) + Style(underline=True)
            strip = self._line([self._title(column) for column in columns], [style] * len(columns), style)
            return strip.extend_cell_length(width, style).crop_extend(0, width, style).apply_style(self.rich_style)
        texts = self._texts_of(at)
        strip = self._line(texts, [self._style(column, text) for column, text in zip(columns, texts, strict=True)])
        if at == self.cursor:
            strip = Strip.join([Strip([Segment("›", self.palette.style("first", bold=True))]), strip.crop(1)])
            strip = strip.extend_cell_length(width).apply_style(self.palette.cursor)
        return strip.crop_extend(0, width, None).apply_style(self.rich_style)

    def _line(self, texts: list[str], styles: list[Style], blank: Style | None = None) -> Strip:
        cells = [
            Segment(self._cell(column, text), style)
            for column, text, style in zip([_TASK, *self._shown], texts, styles, strict=True)
        ]
        gap = Segment(" " * _GAP, blank)
        task = Strip([Segment(" ", blank), cells[0], Segment(" ", blank)])
        rest = Strip([part for cell in cells[1:] for part in (cell, gap)])
        left = self.scroll_offset.x
        return Strip.join([task, rest.crop(min(left, rest.cell_length))])

    def _cell(self, column: Shown, text: str) -> str:
        width = self._widths.get(column.path, column.max_width)
        length = cell_len(text)
        if length > width:
            return set_cell_size(text, max(width - 1, 0)) + "…"
        return " " * (width - length) + text if column.is_number else text + " " * (width - length)

    def _style(self, column: Shown, text: str) -> Style:
        palette = self.palette
        if column.path in ("success", "outcome"):
            return palette.style({"✓": "good", "!": "bad"}.get(text[:1], "soft"))
        if column.role == "expected":
            return palette.style("good")
        return palette.style("ink" if text not in ("–", "…") else "soft")

    def on_click(self, event: events.Click) -> None:
        if self.listed is None:
            return
        if event.y < _HEADER:
            if (path := self._column_at(event.x)) is not None:
                self.post_message(self.HeaderClicked(path))
            return
        at = event.y - _HEADER + self.scroll_offset.y
        if at < len(self.listed):
            is_second = at == self.cursor
            self.move_to(at)
            if is_second:
                self.action_open()

    def _column_at(self, x: int) -> str | None:
        if x < self._task_width:
            return "task"
        left = self._task_width - self.scroll_offset.x
        for column in self._shown:
            right = left + self._widths[column.path] + _GAP
            if left <= x < right:
                return column.path
            left = right
        return None
