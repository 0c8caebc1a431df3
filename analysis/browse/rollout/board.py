"""Draws a board: one symbol per square, coloured by what it stands for, and still readable without colours."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from rollyard.analysis.browse.palette import Palette
from rollyard.analysis.browse.text.visible import visible
from rollyard.records.rollouts.replay import Cell, Frame

_ON_COLOUR = "#14171b"

_GAP = 2


def glyphs_of(cells: Sequence[Cell], palette: Palette) -> dict[str, Style]:
    """Return the style of each symbol."""
    return {cell.symbol: _style(cell.looks, palette) for cell in cells if cell.symbol and cell_len(cell.symbol) == 1}


def _style(looks: str, palette: Palette) -> Style:
    match looks:
        case "wall":
            return Style(color=palette.wall, bgcolor=palette.wall)
        case "box" | "box_done":
            return Style(color=_ON_COLOUR, bgcolor=getattr(palette, looks), bold=True)
        case "player" | "player_on_target":
            return Style(color=_ON_COLOUR, bgcolor=palette.player, bold=True)
        case "target":
            return Style(color=palette.target, bold=True)
        case "floor":
            return Style(color=palette.soft)
        case _:
            return Style(color=palette.ink)


def board_text(board: str, glyphs: dict[str, Style], palette: Palette, width: int) -> Text:
    """Return the board in at most `width` cells: two for each square if they fit, so that squares are square."""
    rows = visible(board).rstrip("\n").split("\n")
    widest = max((cell_len(row) for row in rows), default=0)
    gap = " " if 2 * widest <= width else ""
    found = Text(no_wrap=True, overflow="crop")
    for row in rows:
        for symbol in row:
            found.append(f"{symbol}{gap}", glyphs.get(symbol, palette.style("ink")))
        found.append("\n")
    return found


def legend(cells: Sequence[Cell], boards: str, glyphs: dict[str, Style], palette: Palette, width: int) -> Text:
    """Explain the symbols that occur in the boards, without breaking a line between a symbol and its name."""
    found = Text()
    used = 0
    for cell in cells:
        if not cell.symbol or cell.symbol not in boards:
            continue
        symbol, name = visible(cell.symbol), visible(cell.name)
        needed = cell_len(f"{symbol} {name}")
        if used and used + _GAP + needed > width:
            found.append("\n")
            used = 0
        elif used:
            found.append(" " * _GAP)
            used += _GAP
        found.append(symbol, glyphs.get(cell.symbol, palette.style("ink")))
        found.append(f" {name}", palette.style("soft"))
        used += needed
    return found


def board_width(frames: Sequence[Frame]) -> int:
    """Return the number of squares in the widest row of the first board."""
    return max((cell_len(visible(row)) for row in frames[0].board.split("\n")), default=0) if frames else 0
