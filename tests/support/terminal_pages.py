"""ng_browse's pages in a terminal that exists only in memory, and what a reader sees of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from textual.pilot import Pilot
from textual.widget import Widget

from rollyard.analysis.browse.app import BrowseApp
from rollyard.analysis.viewer.findings import FindingIndex
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import Query
from rollyard.records.rollouts.replay import Replay
from rollyard.records.types import Json
from tests.support.waiting import deadline_s

Draw = Callable[[Json], Replay | None]


def draw_nothing(row: Json) -> Replay | None:
    """No environment of a test has boards, unless the test says so."""
    return None


class Reader:
    """Presses keys and looks at the screen."""

    def __init__(self, app: BrowseApp, pilot: Pilot[None]) -> None:
        self.app, self._pilot = app, pilot

    @property
    def screen(self) -> str:
        """The text of the widgets on the screen, from top to bottom."""
        shown = [widget for widget in self.app.screen.query(Widget) if _is_leaf(widget)]
        shown.sort(key=lambda widget: (widget.region.y, widget.region.x))
        return "\n".join(widget.render_line(y).text.rstrip() for widget in shown for y in range(widget.size.height))

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def type(self, text: str) -> None:
        """Type a text, key by key."""
        names = {" ": "space", "<": "less_than_sign", ">": "greater_than_sign", "=": "equals_sign", "_": "underscore"}
        await self._pilot.press(*(names.get(letter, letter) for letter in text))

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)

    async def sees(self, *texts: str) -> str:
        """Wait until all the texts are on the screen, and return it."""
        await self.until(lambda: all(text in self.screen for text in texts), f"{texts} on the screen")
        return self.screen

    async def until(self, condition: Callable[[], bool], what: str = "the condition") -> None:
        try:
            async with asyncio.timeout(deadline_s()):
                while not condition():
                    await self._pilot.pause(0.01)
        except TimeoutError as error:
            raise AssertionError(f"waited in vain for {what}; the screen:\n{self.screen}") from error


def _is_leaf(widget: Widget) -> bool:
    return bool(widget.is_on_screen and widget.region.area and not widget.is_container)


@contextlib.asynccontextmanager
async def browsing(
    *paths: Path, size: tuple[int, int] = (80, 24), query: Query | None = None, draw: Draw = draw_nothing
) -> AsyncIterator[Reader]:
    """ng_browse over these files, as soon as it lists what they contain."""
    index = FileIndex([(path.stem, path) for path in paths])
    findings = FindingIndex(index.find)
    app = BrowseApp(index, findings, draw, query)
    index.read_through()
    index.start()
    try:
        async with app.run_test(size=size) as pilot:
            reader = Reader(app, pilot)
            await reader.sees("rollout")
            yield reader
    finally:
        findings.close()
        await asyncio.to_thread(index.close)
