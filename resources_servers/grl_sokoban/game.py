"""Implements Sokoban boards, moves and rewards. The results are identical to those of the reference environment.

The reference is GRL's Sokoban environment, which is based on gym-sokoban 0.0.6 (see this folder's README).
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import orjson

from rollyard.records.types import Json

WALL, FLOOR, TARGET, BOX, PLAYER = 0, 1, 2, 4, 5
UP, DOWN, LEFT, RIGHT = 1, 2, 3, 4
STEP_COST = 0.1
MOVES = {"up": UP, "down": DOWN, "left": LEFT, "right": RIGHT}

# A game keeps its board as ASCII bytes and edits them in place; "v" represents √, which is not in ASCII.
_PLAIN = bytes.maketrans(bytes((WALL, FLOOR, TARGET, BOX, PLAYER)), b"#_OXP")
_ON_TARGET = bytes.maketrans(b"_XP", b"OvS")
_STATE = bytes.maketrans(b"#_OXvPS", bytes((WALL, FLOOR, TARGET, BOX, BOX, PLAYER, PLAYER)))
_CODES = {"#": (0, 0), "_": (1, 1), "O": (2, 2), "√": (2, 4), "X": (1, 4), "P": (1, 5), "S": (2, 5)}
_ENTERED = {ord("_"): ord("P"), ord("O"): ord("S"), ord("X"): ord("P"), ord("v"): ord("S")}
_VACATED = {ord("P"): ord("_"), ord("S"): ord("O")}
_PUSHED_ONTO = {ord("_"): ord("X"), ord("O"): ord("v")}
_FREE, _BOXES, _COVERED = b"_O", b"Xv", ord("v")


@dataclass(frozen=True, slots=True)
class Room:
    """A position, with one byte per cell, row by row, including the surrounding walls.

    `fixed` contains only the codes WALL, FLOOR and TARGET. In `state`, BOX and PLAYER replace the code of their cell.
    """

    rows: int
    cols: int
    fixed: bytes
    state: bytes
    seed: int | None = None
    """The seed that generated the room; None for a room that was not generated."""
    tries: int = 0
    """Number of seeds that were tried; 1 means that the requested seed yielded a room."""

    def board(self) -> str:
        """Return the board as text, one line per row.

        The symbols are # wall, _ floor, O target, X box, √ box on target, P player, S player on target.
        """
        return _text(_cells(self))

    @classmethod
    def parse(cls, board: str) -> Room:
        """Parse a board.

        Raises ValueError unless it is surrounded by walls and has one player and as many targets as boxes.
        """
        lines = board.split("\n")
        if unknown := set(board) - set(_CODES) - {"\n"}:
            raise ValueError(f"unknown symbols {sorted(unknown)} in a board; use {' '.join(_CODES)}")
        if len({len(line) for line in lines}) != 1:
            raise ValueError(f"the rows of a board must have equal lengths; found {[len(line) for line in lines]}")
        rim = lines[0] + lines[-1] + "".join(line[:1] + line[-1:] for line in lines)
        if set(rim) != {"#"}:
            raise ValueError("a board must be surrounded by walls (#)")
        codes = [_CODES[symbol] for line in lines for symbol in line]
        fixed, state = bytes(code[0] for code in codes), bytes(code[1] for code in codes)
        if state.count(PLAYER) != 1 or not state.count(BOX) == fixed.count(TARGET) > 0:
            found = f"{state.count(PLAYER)} players, {state.count(BOX)} boxes, {fixed.count(TARGET)} targets"
            raise ValueError(f"a board needs one player and as many boxes as targets, at least one; found {found}")
        return cls(len(lines), len(lines[0]), fixed, state)


class GameStep(NamedTuple):
    reward: float
    done: bool
    """Whether all boxes are on targets or the step limit is reached."""
    effective: bool
    """Whether the player moved."""
    success: bool
    """Whether all boxes are on targets."""


class Game:
    """A game, which can be played once. Like the reference, `step` does not check `done`: the caller must stop then."""

    __slots__ = ("_cells", "_deltas", "_player", "_room", "_targets", "boxes_on_target", "done", "max_steps", "steps",
                 "success", "total_reward")  # fmt: skip

    def __init__(self, room: Room, max_steps: int = 100) -> None:
        stride = room.cols + 1
        self._room = room
        self._deltas = (0, -stride, stride, -1, 1)
        self._targets = room.fixed.count(TARGET)
        self.max_steps = max_steps
        self.steps = 0
        self.total_reward = 0.0
        self._place(room)
        self.success = self.done = self.boxes_on_target == self._targets

    def board(self) -> str:
        return _text(self._cells)

    def position(self) -> Room:
        room, state = self._room, bytes(self._cells).translate(_STATE, b"\n")
        return Room(room.rows, room.cols, room.fixed, state, room.seed, room.tries)

    def step(self, action: int) -> GameStep:
        """Move the player UP, DOWN, LEFT or RIGHT, pushing a box if necessary. A blocked move also costs a step."""
        before = self.boxes_on_target
        effective = self._move(self._deltas[action])
        after = self.boxes_on_target
        self.steps += 1
        # The additions are in the reference's order, which affects the floating-point result.
        reward = -0.1
        if after > before:
            reward += 1
        elif after < before:
            reward -= 1
        self.success = success = after == self._targets
        if success:
            reward += 10
        self.done = done = success or self.steps == self.max_steps
        self.total_reward += reward
        return GameStep(reward, done, effective, success)

    def back_to(self, before: Room) -> float:
        """Restore an earlier position of this game and return the reward. Must not be called once the game is done.

        This costs a step. Boxes that move off or onto targets change the reward by 1 each, as in `step`.
        """
        covered = self.boxes_on_target
        self._place(before)
        self.steps += 1
        reward = -STEP_COST + (self.boxes_on_target - covered)
        self.done = self.steps == self.max_steps
        self.total_reward += reward
        return reward

    def _place(self, room: Room) -> None:
        self._cells = _cells(room)
        self._player = max(self._cells.find(b"P"), self._cells.find(b"S"))
        self.boxes_on_target = self._cells.count(_COVERED)

    def _move(self, delta: int) -> bool:
        cells, here = self._cells, self._player
        there = here + delta
        entered = cells[there]
        if entered in _BOXES:
            landed = _PUSHED_ONTO.get(cells[there + delta])
            if landed is None:
                return False
            cells[there + delta] = landed
            self.boxes_on_target += (landed == _COVERED) - (entered == _COVERED)
        elif entered not in _FREE:
            return False
        cells[here] = _VACATED[cells[here]]
        cells[there] = _ENTERED[entered]
        self._player = there
        return True


def parse_action(value: str | int) -> int:
    """Parse a model's action: a direction (case-insensitive), or 1 to 4 as a number or string.

    Raises ValueError if it is invalid.
    """
    action = MOVES.get(value.strip().lower()) if isinstance(value, str) else None
    if action is None and not isinstance(value, bool) and str(value).strip() in ("1", "2", "3", "4"):
        action = int(value)
    if action is None:
        raise ValueError(f"{repr(value)[:40]} is not a move; use Up, Down, Left or Right (or 1, 2, 3, 4)")
    return action


def canonical_board(board: str) -> str:
    """Return a string that is the same for all rotations and reflections of a board, for comparing puzzles."""
    grid = board.split("\n")
    transposed = ["".join(column) for column in zip(*grid, strict=True)]
    mirrored = [[line[::-1] for line in lines] for lines in (grid, transposed)]
    return min("\n".join(lines[::order]) for lines in (grid, transposed, *mirrored) for order in (1, -1))


def _cells(room: Room) -> bytearray:
    plain = bytearray(room.state.translate(_PLAIN))
    at = room.fixed.find(TARGET)
    while at >= 0:
        plain[at : at + 1] = plain[at : at + 1].translate(_ON_TARGET)
        at = room.fixed.find(TARGET, at + 1)
    cols = room.cols
    return bytearray(b"\n").join([plain[start : start + cols] for start in range(0, len(plain), cols)])


def _text(cells: bytearray) -> str:
    return cells.decode("ascii").replace("v", "√")


Observation = Literal["text", "coordinates", "image"]

_COORDINATES = re.compile(
    r"to \((\d{1,2}), (\d{1,2})\) at the bottom right.*\nPlayer: (.*)\nBoxes: (.*)\nTargets: (.*)\n"
    r"Boxes on targets: .*\nWalls inside: (.*)"
)
_CELL = re.compile(r"\((\d{1,2}), (\d{1,2})\)")


class View:
    def __init__(self, kinds: tuple[Observation, ...], tile_px: int) -> None:
        self.kinds = kinds
        self._tile_px = tile_px

    def text(self, board: str) -> str:
        if self.kinds == ("text",):
            return board
        shown = [board] if "text" in self.kinds else []
        if "coordinates" in self.kinds:
            shown.append(coordinates(board))
        return "\n\n".join(shown) or "The board is in the image."

    def answer(self, board: str, state: Json) -> Json | list[Json]:
        """Return a tool result: an object or, if images are enabled, a text part with the object and an image part."""
        answer = {"observation": self.text(board), **state}
        if "image" not in self.kinds:
            return answer
        url = "data:image/png;base64," + base64.b64encode(png(board, self._tile_px)).decode()
        image = {"type": "input_image", "image_url": url, "detail": "auto"}
        return [{"type": "input_text", "text": orjson.dumps(answer).decode()}, image]


def coordinates(board: str) -> str:
    """Describe the board as lists of coordinates, from which `board_in` can restore it."""
    lines = board.split("\n")
    last_row, last_col = len(lines) - 1, len(lines[0]) - 1
    found: dict[str, list[str]] = {symbol: [] for symbol in "PSX√O#"}
    for row, line in enumerate(lines[1:-1], 1):
        for col, symbol in enumerate(line[1:-1], 1):
            if symbol != "_":
                found[symbol].append(f"({row}, {col})")

    def cells(symbols: str) -> str:
        return " ".join(cell for symbol in symbols for cell in found[symbol]) or "none"

    return (
        f"Cells are (row, column), from (0, 0) at the top left to ({last_row}, {last_col}) at the bottom right. "
        "The outermost rows and columns are wall.\n"
        f"Player: {cells('PS')}\n"
        f"Boxes: {cells('X√')}\n"
        f"Targets: {cells('O√S')}\n"
        f"Boxes on targets: {cells('√')}\n"
        f"Walls inside: {cells('#')}"
    )


def board_in(text: str) -> str | None:
    """Find the output of `coordinates` in the text and rebuild the board. Return None if there is no such output."""
    if (match := _COORDINATES.search(text)) is None:
        return None
    last_row, last_col = int(match[1]), int(match[2])
    player, boxes, targets, walls = (
        {(int(row), int(col)) for row, col in _CELL.findall(cells)} for cells in match.groups()[2:]
    )

    def symbol(row: int, col: int) -> str:
        cell = row, col
        if cell in walls or row in (0, last_row) or col in (0, last_col):
            return "#"
        plain, on_target = ("P", "S") if cell in player else ("X", "√") if cell in boxes else ("_", "O")
        return on_target if cell in targets else plain

    return "\n".join("".join(symbol(row, col) for col in range(last_col + 1)) for row in range(last_row + 1))


_WALL, _FLOOR, _TARGET, _BOX, _DONE, _PLAYER = range(6)
_COLOURS = bytes.fromhex("39404d e8e4d9 d94f3d b9822f 3f9b52 2f6fd0")
_LOOKS = {
    "#": (_WALL, _WALL),
    "_": (_FLOOR, _FLOOR),
    "O": (_FLOOR, _TARGET),
    "X": (_FLOOR, _BOX),
    "√": (_TARGET, _DONE),
    "P": (_FLOOR, _PLAYER),
    "S": (_TARGET, _PLAYER),
}
"""Symbol -> colours of the tile's frame and middle. The frame of a box or player shows whether it is on a target."""
LEGEND = (
    "dark grey is wall, light is floor, a red square is a target, a brown one a box, a blue one is you; on a target "
    "the box is green in a red frame, and you are blue in a red frame"
)
"""Explains the image's colours in prompts."""


def png(board: str, tile_px: int) -> bytes:
    lines = board.split("\n")
    size = struct.pack(">IIBBBBB", tile_px * len(lines[0]), tile_px * len(lines), 8, 3, 0, 0, 0)
    rows = b"".join(_rows(line, tile_px) for line in lines)
    chunks = ((b"IHDR", size), (b"PLTE", _COLOURS), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    framed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@lru_cache(maxsize=1024)
def _rows(line: str, tile_px: int) -> bytes:
    """Return the PNG scanlines for one row of cells. Each starts with a 0 byte, which is PNG's filter type None."""
    frame = max(1, tile_px // 5)
    middle = tile_px - 2 * frame
    edge = b"\0" + b"".join(bytes([_LOOKS[symbol][0]]) * tile_px for symbol in line)
    inside = b"\0" + b"".join(
        bytes([ground]) * frame + bytes([figure]) * middle + bytes([ground]) * frame
        for ground, figure in (_LOOKS[symbol] for symbol in line)
    )
    return edge * frame + inside * middle + edge * frame
