"""Reads levels from board strings and from level files (.xsb or Boxoban's .txt)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from textwrap import dedent

from rollyard.resources_servers.grl_sokoban.game import Room

_XSB_SYMBOLS = str.maketrans({" ": "_", "-": "_", ".": "O", "o": "O", "$": "X", "b": "X", "*": "√", "B": "√", "@": "P",
                      "p": "P", "+": "S", "P": "S"})  # fmt: skip
_OWN_SYMBOLS = str.maketrans({" ": "_", "-": "_"})
_SYMBOLS = frozenset("#_OX√PS")
_RUNS = frozenset("0123456789()")
_CELLS = r"[-#_ .$*@+pPbBoOX√S]"
_LINE = re.compile(rf"(?=.*#)(?:(?:\d*{_CELLS}|\|)+|#.*#)")
"""Matches a line of a level: symbols, including at least one wall. A line that starts and ends with a wall matches even
if it contains invalid symbols, so that they are reported."""
_RUN = re.compile(r"(?<!\d)(\d{1,3})([^\d\n])")
"""Matches a run in run-length encoding: a number of at most three digits, followed by the symbol."""


class InvalidLevel(ValueError):
    """The level cannot be used; the message states why."""


@dataclass(frozen=True, slots=True)
class Level:
    file: str
    index: int
    """Number of the level in the file, starting at 0."""
    line: int
    """Number of the level's first line in the file, starting at 1."""
    text: str

    @property
    def name(self) -> str:
        return f"{self.file}, level {self.index} (line {self.line})"

    def room(self) -> Room:
        """Parse the level. Raises InvalidLevel with the file, level and line in the message."""
        try:
            return read_level(self.text)
        except InvalidLevel as error:
            raise InvalidLevel(f"{self.name}: {error}") from error


def levels_of(path: Path) -> tuple[Level, ...]:
    """Return the levels in a file without checking them. Raises OSError if the file cannot be read.

    Levels may be separated by titles, comments and blank lines.
    """
    return _levels_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _levels_of(path: Path, changed_ns: int) -> tuple[Level, ...]:
    # Old collections use legacy encodings in titles and comments, but their boards are ASCII.
    lines = path.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    found: list[Level] = []
    first: int | None = None
    for number, line in enumerate([*lines, ""]):
        if _LINE.fullmatch(line.strip()):
            first = number if first is None else first
        elif first is not None:
            found.append(Level(path.name, len(found), first + 1, "\n".join(lines[first:number])))
            first = None
    return tuple(found)


def read_level(text: str) -> Room:
    """Parse a board in the symbols of `Room.board` or .xsb. Cells that the player cannot reach become walls.

    Boards may be run-length encoded: `3#-#` stands for `###-#`, and | ends a row.

    Raises InvalidLevel for unknown symbols, a hole in the wall, a wrong number of players, boxes or targets, an
    unreachable box or target, and a level that is already solved.
    """
    text = _RUN.sub(lambda run: int(run[1]) * run[2], re.sub(r"\r\n?|\|", "\n", text))
    lines = [line.rstrip() for line in dedent(text).strip("\n").split("\n")]
    # Every board has a box, and .xsb uses other symbols for boxes.
    symbols = _OWN_SYMBOLS if {"X", "√"} & set(text) else _XSB_SYMBOLS
    lines = [line.translate(symbols) for line in lines]
    if unknown := sorted(set("".join(lines)) - _SYMBOLS):
        shown = " ".join(symbol if symbol.isprintable() else repr(symbol) for symbol in unknown)
        hint = (
            "; run-length encoding supports a number before a symbol, but no brackets" if set(unknown) & _RUNS else ""
        )
        raise InvalidLevel(f"unknown symbols {shown}; use # space . $ * @ + (or # _ O X √ P S){hint}")
    try:
        room = Room.parse(sealed(lines))
    except InvalidLevel:
        raise
    except ValueError as error:
        raise InvalidLevel(str(error)) from error
    if "X" not in room.board():
        raise InvalidLevel("every box is already on a target: there is nothing to solve")
    return room


def sealed(lines: list[str]) -> str:
    """Return the board as a rectangle in which unreachable cells are walls.

    Raises InvalidLevel if the wall has a hole, a box or target is unreachable, or there is not exactly one player.
    """
    width = max(map(len, lines), default=0)
    cells = [list(line.ljust(width, "_")) for line in lines]
    queue = [(row, col) for row, line in enumerate(cells) for col, symbol in enumerate(line) if symbol in "PS"]
    if len(queue) != 1:
        raise InvalidLevel(f"a level needs one player; found {len(queue)}")
    reached = set(queue)
    while queue:
        row, col = queue.pop()
        if row in (0, len(cells) - 1) or col in (0, width - 1):
            reason = f"the wall has a hole: the player could leave at row {row}, column {col} (counted from 0)"
            raise InvalidLevel(reason)
        for near in ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)):
            if near not in reached and cells[near[0]][near[1]] != "#":
                reached.add(near)
                queue.append(near)
    for row, line in enumerate(cells):
        for col, symbol in enumerate(line):
            if (row, col) in reached:
                continue
            if symbol in "XO":
                what = "box" if symbol == "X" else "target"
                raise InvalidLevel(f"the player cannot reach the {what} in row {row}, column {col} (counted from 0)")
            line[col] = "#"
    return "\n".join("".join(line) for line in cells)
