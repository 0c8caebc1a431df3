"""Renders a board for the model as text, coordinates, an image, or a combination of these."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from functools import lru_cache
from typing import Literal

import orjson

from rollyard.records.types import Json

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
