"""HelpScreen: the keys of all pages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from rollyard.analysis.browse.keys import PAGES, Key
from rollyard.analysis.browse.palette import Palette
from rollyard.analysis.browse.parts.bindings import bindings

_WIDTH = 18


class HelpScreen(ModalScreen[None]):
    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > VerticalScroll { width: 62; max-width: 100%; height: auto; max-height: 100%; }
    HelpScreen > VerticalScroll { padding: 0 1; border: round $secondary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = bindings(
        {
            "escape,q,question_mark,u": "dismiss",
            "j": "scroll(3)",
            "k": "scroll(-3)",
        },
    )

    def __init__(self, palette: Palette, page: str) -> None:
        """`page`: the page whose keys come first."""
        super().__init__()
        self._palette, self._page = palette, page

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self._text())

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def _text(self) -> Text:
        found = Text()
        for title, keys in sorted(PAGES, key=lambda page: (page[0] != self._page, page[0] != "Everywhere")):
            found.append(f"{title}\n", self._palette.style("ink", bold=True))
            self._add(found, keys)
            found.append("\n")
        return found.append("Esc closes this list.", self._palette.style("soft"))

    def _add(self, found: Text, keys: Iterable[Key]) -> None:
        for key in keys:
            found.append(f"  {key.keys:<{_WIDTH}} ", self._palette.style("first"))
            found.append(f"{key.action}\n")
