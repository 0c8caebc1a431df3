"""RolloutScreen: one rollout. The verdict comes first, the board stays beside the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, cast

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.screen import Screen
from textual.widgets import Static

from rollyard.analysis.browse.blocks.block_view import BlockView
from rollyard.analysis.browse.navigation import Navigation
from rollyard.analysis.browse.parts.bindings import bindings
from rollyard.analysis.browse.parts.prompt import Prompt
from rollyard.analysis.browse.rollout.board import glyphs_of
from rollyard.analysis.browse.rollout.board_panel import BoardPanel
from rollyard.analysis.browse.rollout.conversation_blocks import blocks_of, turn_starts
from rollyard.analysis.browse.rollout.headline import headline
from rollyard.analysis.browse.rollout.rollout_reader import RolloutReader
from rollyard.analysis.browse.text.visible import visible_line
from rollyard.analysis.viewer.api_records import Event, RolloutView
from rollyard.records.errors import RunError

_BESIDE = 64
"""Minimum width at which the board is beside the conversation instead of above it."""
_HINT = "[ ] rollout  j k event  J K turn  / find  m original  u back  ? keys"
_BOARD_HINT = "← → move  Space play  j k event  [ ] rollout  / find  u back  ? keys"


class RolloutScreen(Screen[None]):
    TITLE = "Rollout"
    CSS = """
    RolloutScreen > Static { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    RolloutScreen #title { text-style: bold; }
    RolloutScreen #headline { color: $text; }
    RolloutScreen #hint { color: $text-muted; }
    RolloutScreen #body { height: 1fr; }
    RolloutScreen BlockView { width: 1fr; height: 1fr; scrollbar-size-vertical: 1; }
    RolloutScreen BoardPanel { height: 1fr; padding: 0 0 0 1; scrollbar-size-vertical: 1; }
    RolloutScreen.above #body { layout: vertical; }
    RolloutScreen.above BoardPanel { dock: top; width: 1fr; height: auto; max-height: 50%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "left_square_bracket": "rollout(-1)",
            "right_square_bracket": "rollout(1)",
            "u,escape": "back",
            "j": "event(1)",
            "k": "event(-1)",
            "J": "turn(1)",
            "K": "turn(-1)",
            "enter": "whole",
            "slash": "find",
            "n": "match(1)",
            "N": "match(-1)",
            "m": "original",
            "space": "play",
            "o": "optimal",
        },
        before_widgets={
            "left": "step(-1)",
            "right": "step(1)",
            "home": "ends(False)",
            "end": "ends(True)",
        },
    )

    def __init__(self, reader: RolloutReader, at: int, find: str, moved: Callable[[int], None]) -> None:
        """`find`: the search of the list, whose matches are marked. `moved` is called with the place of each rollout
        that is shown.
        """
        super().__init__()
        self.reader, self.at, self._find, self._moved = reader, at, find, moved
        self.view: RolloutView | None = None

    @property
    def browse(self) -> Navigation:
        """The app, for going to other pages."""
        return cast(Navigation, self.app)

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="headline")
        with Horizontal(id="body"):
            yield BlockView()
            yield BoardPanel()
        yield Prompt()
        yield Static(id="hint")

    def on_mount(self) -> None:
        self.query_one(BlockView).focus()
        self._load()

    def on_resize(self, event: events.Resize) -> None:
        self._arrange()

    @work(exclusive=True, group="rollout")
    async def _load(self) -> None:
        at = self.at
        try:
            view = await asyncio.to_thread(self.reader.view, at)
            until_failure = await asyncio.to_thread(self.reader.until_failure, view)
        except (OSError, RunError) as error:
            self.query_one("#headline", Static).update(Text(visible_line(f"! {error}; go back (u) and try again")))
            return
        self.view = view
        self._moved(at)
        self._show(view, until_failure)

    def _show(self, view: RolloutView, until_failure: Mapping[int, Sequence[Event]]) -> None:
        line = view.line
        title = f"Task {line.task}, repeat {line.repeat}   {self.at + 1:,} of {len(self.reader):,}"
        self.query_one("#title", Static).update(Text(title))
        self.query_one("#headline", Static).update(headline(line, self.browse.palette))
        palette = self.browse.palette
        self.query_one(BoardPanel).show(view.replay, palette)
        self._arrange()
        glyphs = glyphs_of(view.replay.cells, palette) if view.replay else {}
        self.query_one(BlockView).show(blocks_of(view, until_failure), palette, glyphs, find=self._find)
        self._hint(_BOARD_HINT if self._has_board else _HINT)

    def paint(self) -> None:
        """Use the colours of the current theme."""
        if self.view is not None:
            blocks, panel = self.query_one(BlockView), self.query_one(BoardPanel)
            self.query_one("#headline", Static).update(headline(self.view.line, self.browse.palette))
            panel.palette = self.browse.palette
            panel.draw()
            blocks.repaint(
                self.browse.palette, glyphs_of(self.view.replay.cells, panel.palette) if self.view.replay else {}
            )

    def _arrange(self) -> None:
        panel = self.query_one(BoardPanel)
        panel.display = self._has_board
        is_above = self.size.width < _BESIDE
        self.set_class(is_above, "above")
        panel.styles.width = "1fr" if is_above else min(panel.wanted_width, self.size.width // 2)
        self.call_after_refresh(panel.draw)

    @property
    def _has_board(self) -> bool:
        return self.view is not None and self.view.replay is not None and bool(self.view.replay.frames)

    def _hint(self, text: str) -> None:
        self.query_one("#hint", Static).update(Text(text, no_wrap=True, overflow="ellipsis"))

    # ---- keys

    def action_rollout(self, by: int) -> None:
        at = self.at + by
        if 0 <= at < len(self.reader):
            self.at, self._find = at, self.query_one(BlockView).find
            self._load()

    def action_back(self) -> None:
        self.browse.back()

    def action_event(self, by: int) -> None:
        self.query_one(BlockView).move(by)

    def action_turn(self, by: int) -> None:
        blocks = self.query_one(BlockView)
        starts = turn_starts(list(blocks.blocks))
        if not starts:
            return
        here = sum(start <= blocks.current for start in starts) - 1
        is_between = by < 0 and here >= 0 and blocks.current > starts[here]
        blocks.go(starts[max(0, min(len(starts) - 1, here if is_between else here + by))])

    def action_whole(self) -> None:
        self.query_one(BlockView).toggle()

    def action_original(self) -> None:
        blocks = self.query_one(BlockView)
        blocks.original = not blocks.original
        blocks.lay_out()

    def action_find(self) -> None:
        self.query_one(Prompt).ask("find", "Find in this rollout (Enter)", self.query_one(BlockView).find)

    @on(Prompt.Answered)
    def _answered(self, event: Prompt.Answered) -> None:
        self._close_prompt()
        self._find = event.text
        self.query_one(BlockView).search(event.text)

    @on(Prompt.Cancelled)
    def _close_prompt(self) -> None:
        self.query_one(Prompt).close()
        self.query_one(BlockView).focus()

    def action_match(self, by: int) -> None:
        blocks = self.query_one(BlockView)
        if blocks.find:
            blocks.next_match(by)

    @on(BlockView.Matched)
    def _matched(self, event: BlockView.Matched) -> None:
        found = visible_line(self.query_one(BlockView).find)
        self._hint(f"match {event.number} of {event.count} of {found!r}   n N next, previous")

    def action_play(self) -> None:
        if self._has_board:
            self.query_one(BoardPanel).toggle()

    def action_step(self, by: int) -> None:
        if self._has_board:
            panel = self.query_one(BoardPanel)
            panel.go(panel.at + by)
        else:
            self.action_turn(by)

    def action_ends(self, last: bool) -> None:
        if self._has_board:
            panel = self.query_one(BoardPanel)
            panel.go(len(panel.frames) - 1 if last else 0)
        else:
            blocks = self.query_one(BlockView)
            blocks.go(len(blocks.blocks) - 1 if last else 0)

    def action_optimal(self) -> None:
        self.query_one(BoardPanel).switch()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave all keys to the line for typing while it is open."""
        return not self.query_one(Prompt).is_open or action == "back"

    @on(BoardPanel.Moved)
    def _board_moved(self, event: BoardPanel.Moved) -> None:
        blocks = self.query_one(BlockView)
        found = [at for at, block in enumerate(blocks.blocks) if block.call is not None and block.call == event.call]
        if found:
            blocks.go(found[0], quietly=True)

    @on(BlockView.Moved)
    def _block_moved(self, event: BlockView.Moved) -> None:
        if event.block.call is not None:
            self.query_one(BoardPanel).show_call(event.block.call)
