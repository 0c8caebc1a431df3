"""Draws a board as a PNG image with square tiles, framed in the colour of the floor or target under the object."""

from __future__ import annotations

import base64
import struct
import zlib
from functools import lru_cache

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


def data_url(board: str, tile_px: int) -> str:
    """Return the image of a board as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png(board, tile_px)).decode()


def png(board: str, tile_px: int) -> bytes:
    """Return the image of a board as PNG, with cells of `tile_px` x `tile_px` pixels."""
    lines = board.split("\n")
    size = struct.pack(">IIBBBBB", tile_px * len(lines[0]), tile_px * len(lines), 8, 3, 0, 0, 0)
    rows = b"".join(_rows(line, tile_px) for line in lines)
    chunks = ((b"IHDR", size), (b"PLTE", _COLOURS), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


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


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
