"""Finds boards and tables within prose, whose line breaks and spaces must stay as they are.

The rules are those of the web viewer (`analysis/viewer/static/textgrids.js`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

_WORD = re.compile(r"[^\W\d_]{3}")


class Piece(NamedTuple):
    """Successive lines of the same kind."""

    text: str
    grid: bool


def pieces(text: str) -> list[Piece]:
    """Divide a text. A grid has at least two lines: lines without words, or rows of cells of the same length."""
    lines = text.split("\n")
    in_grid = [
        _is_drawing(line) or _same_length(lines, at, at - 1) or _same_length(lines, at, at + 1)
        for at, line in enumerate(lines)
    ]
    found: list[Piece] = []
    for at, line in enumerate(lines):
        beside = (at > 0 and in_grid[at - 1]) or (at + 1 < len(lines) and in_grid[at + 1])
        grid = in_grid[at] and beside
        if found and found[-1].grid == grid:
            found[-1] = Piece(f"{found[-1].text}\n{line}", grid)
        else:
            found.append(Piece(line, grid))
    return found


def _is_drawing(line: str) -> bool:
    return len("".join(line.split())) > 1 and not _WORD.search(line)


def _is_cell_row(line: str) -> bool:
    return len(line) > 2 and not any(letter.isspace() or letter.islower() for letter in line)


def _same_length(lines: list[str], at: int, other: int) -> bool:
    if not 0 <= other < len(lines) or len(lines[at]) != len(lines[other]):
        return False
    return _is_cell_row(lines[at]) and _is_cell_row(lines[other])
