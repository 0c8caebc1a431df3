"""BoardPanel: the board of an episode at one move, next to the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static

from rollyard.analysis.browse.palette import DARK, Palette
from rollyard.analysis.browse.rollout.board import board_text, board_width, glyphs_of, legend
from rollyard.analysis.browse.text.visible import visible_line
from rollyard.analysis.charts.labels import pluralize
from rollyard.analysis.report.formatting import number
from rollyard.records.rollouts.replay import Frame, Replay

_FRAME_S = 0.25
MIN_WIDTH = 24
MAX_WIDTH = 44


class BoardPanel(VerticalScroll, can_focus=False):
    """Starts at the last move, because users look for the outcome first."""

    class Moved(Message):
        """Another move of the episode is shown."""

        def __init__(self, call: int | None) -> None:
            super().__init__()
            self.call = call
            """Index of the move's tool call among all calls of the episode."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.palette: Palette = DARK
        self.replay: Replay | None = None
        self.at = 0
        self.is_optimal = False
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Static()

    @property
    def frames(self) -> Sequence[Frame]:
        """The boards of the episode or of the optimal solution."""
        if self.replay is None:
            return ()
        return self.replay.optimal if self.is_optimal else self.replay.frames

    @property
    def wanted_width(self) -> int:
        """Number of cells that the boards need."""
        return max(MIN_WIDTH, min(MAX_WIDTH, 2 * board_width(self.frames) + 2))

    def show(self, replay: Replay | None, palette: Palette) -> None:
        """Show the boards of another rollout."""
        self.replay, self.palette, self.is_optimal = replay, palette, False
        self._stop()
        self.at = max(len(self.frames) - 1, 0)
        self.draw()

    def go(self, at: int, *, quietly: bool = False) -> None:
        """Show a move. `quietly`: without the message `Moved`."""
        self._stop()
        self._go(at, quietly)

    def show_call(self, call: int) -> None:
        """Show the move that a tool call made, if it made one."""
        if self.is_optimal:
            return
        found = [at for at, frame in enumerate(self.frames) if frame.event == call]
        if found:
            self.go(found[-1], quietly=True)

    def toggle(self) -> None:
        """Play the moves, or pause."""
        if self._timer is not None:
            self._stop()
            return
        if self.at >= len(self.frames) - 1:
            self._go(0, False)
        self._timer = self.set_interval(_FRAME_S, self._advance)

    def switch(self) -> None:
        """Show the optimal solution, or the episode again."""
        if self.replay is not None and self.replay.optimal and self.replay.frames:
            self._stop()
            self.is_optimal = not self.is_optimal
            self.at = 0 if self.is_optimal else len(self.frames) - 1
            self.draw()

    def _advance(self) -> None:
        if self.at >= len(self.frames) - 1:
            self._stop()
        else:
            self._go(self.at + 1, False)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    def _go(self, at: int, quietly: bool) -> None:
        if not self.frames:
            return
        self.at = max(0, min(at, len(self.frames) - 1))
        self.draw()
        if not quietly and not self.is_optimal:
            self.post_message(self.Moved(self.frames[self.at].event))

    def draw(self) -> None:
        """Draw the board again."""
        self.query_one(Static).update(self._text())

    def _text(self) -> Text:
        replay, palette = self.replay, self.palette
        if replay is None or not self.frames:
            return Text("")
        frame, soft = self.frames[self.at], palette.style("soft")
        glyphs, width = glyphs_of(replay.cells, palette), max(self.size.width, MIN_WIDTH) - 1
        title = "Optimal solution" if self.is_optimal else visible_line(replay.title) or "Played"
        found = Text(f"{title}\n", palette.style("ink", bold=True))
        found.append_text(board_text(frame.board, glyphs, palette, width))
        found.append(f"move {self.at} of {len(self.frames) - 1}" if self.at else "start", soft)
        if frame.move:
            found.append(f"  {visible_line(frame.move)}", palette.style("ink", bold=True))
        if frame.note:
            found.append(f"  {visible_line(frame.note)}", palette.style("second"))
        found.append("\n")
        if frame.reward is not None:
            found.append(f"reward {frame.reward:+.4g}  ", palette.style("good" if frame.reward > 0 else "ink"))
        if frame.total is not None:
            found.append(f"total {number(frame.total)}", soft)
        found.append("\n\n")
        boards = "".join(one.board for one in (self.frames[0], self.frames[-1], frame))
        found.append_text(legend(replay.cells, boards, glyphs, palette, width))
        if replay.optimal and not self.is_optimal:
            found.append(f"\n\nBest possible: {pluralize(len(replay.optimal) - 1, 'move')} (o)", soft)
        if replay.note:
            found.append(f"\n\n{visible_line(replay.note)}", soft)
        return found
