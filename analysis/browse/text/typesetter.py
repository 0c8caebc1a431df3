"""Typesetter: breaks text into lines of one width, as strips that a page can show at any scroll position."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from rollyard.analysis.browse.palette import Palette
from rollyard.analysis.browse.text.grids import Piece, pieces
from rollyard.analysis.browse.text.markup import MAX_MARKDOWN, markdown_of
from rollyard.analysis.browse.text.visible import visible

_MIN_WIDTH = 8


class Typesetter:
    """Sets text in lines of `width` cells. All texts it gets are untrusted, and it makes them visible itself."""

    def __init__(
        self,
        width: int,
        palette: Palette,
        glyphs: Mapping[str, Style] | None = None,
        console: Console | None = None,
    ) -> None:
        """`glyphs`: the style of each symbol of a board, by its character. `console`: one that draws, of any width."""
        self.width = max(width, _MIN_WIDTH)
        self.palette = palette
        self._glyphs = glyphs or {}
        self._console = console or Console(
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            legacy_windows=False,
            theme=palette.markdown,
            no_color=False,
        )
        self._options = self._console.options.update(width=self.width, height=None)
        self._code_theme = "ansi_dark" if palette.name == "dark" else "ansi_light"

    def verbatim(self, text: str, style: Style | None = None) -> list[Strip]:
        """Return the text with its own line breaks and spaces; longer lines are broken anywhere."""
        found: list[Strip] = []
        for line in visible(text).split("\n"):
            for part in chop_cells(line, self.width) or [""]:
                found.append(Strip(self._coloured(part, style)))
        return found

    def prose(self, text: str) -> list[Strip]:
        """Return the text as Markdown. Boards and other drawings in it stay as they are."""
        shown = visible(text)
        if len(shown) > MAX_MARKDOWN:
            return self.verbatim(shown)
        found: list[Strip] = []
        for piece in _outside_fences(shown):
            if piece.grid:
                found += self.verbatim(piece.text)
            elif piece.text.strip():
                found += self.rendered(markdown_of(piece.text, self._code_theme))
        return found

    def wrapped(self, text: str, style: Style | None = None) -> list[Strip]:
        """Return the text broken between words."""
        shown = visible(text)
        if "\n" not in shown and cell_len(shown) <= self.width:  # most texts, and a hundred times as fast
            return [Strip([Segment(shown, style)])]
        return self.rendered(Text(shown, style=style or Style()))

    def rendered(self, renderable: RenderableType) -> list[Strip]:
        """Return the lines that Rich draws. Its text must be visible already."""
        lines = self._console.render_lines(renderable, self._options, pad=False)
        return [Strip(line) for line in lines]

    def pairs(self, entries: Iterable[tuple[str, str, Style | None]]) -> list[Strip]:
        """Return labels with their values beside them; longer values are below their label."""
        listed = [(visible(label), value, style) for label, value, style in entries]
        longest = min(max((cell_len(label) for label, _, _ in listed), default=0), self.width // 3)
        soft = self.palette.style("soft")
        found: list[Strip] = []
        for label, value, style in listed:
            if "\n" in value or cell_len(label) > longest:
                found.append(Strip([Segment(label, soft)]))
                found += _indented(self.narrower(2).verbatim(value, style), 2)
                continue
            lines = self.narrower(longest + 2).wrapped(value, style)
            for at, line in enumerate(lines):
                start = f"{label:<{longest}}  " if at == 0 else " " * (longest + 2)
                found.append(Strip.join([Strip([Segment(start, soft)]), line]))
        return found

    def narrower(self, by: int) -> Typesetter:
        """Return a typesetter of `by` cells less, for indented text."""
        return Typesetter(self.width - by, self.palette, self._glyphs, self._console)

    def _coloured(self, line: str, style: Style | None) -> list[Segment]:
        """Colour a line of a board, which consists of the board's symbols only, like the board itself."""
        symbols = "".join(line.split())
        if len(symbols) < 3 or not self._glyphs or any(symbol not in self._glyphs for symbol in symbols):
            return [Segment(line, style)]
        return [Segment(letter, self._glyphs.get(letter, style)) for letter in line]


def _indented(strips: Iterable[Strip], by: int) -> list[Strip]:
    margin = Strip([Segment(" " * by)])
    return [Strip.join([margin, strip]) for strip in strips]


def _outside_fences(text: str) -> list[Piece]:
    """Divide the text, but not if it has fenced code, which belongs to the Markdown around it."""
    return [Piece(text, grid=False)] if "```" in text or "~~~" in text else pieces(text)
