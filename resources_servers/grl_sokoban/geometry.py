"""Computes the generator's lookup tables, which depend only on the board size, and checks whether a room can exist."""

from dataclasses import dataclass
from functools import lru_cache

_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))
_PULLS = ((-1, 0), (1, 0), (0, -1), (0, 1))
_MASKS = ("000/111/000", "010/010/010", "000/110/010", "000/110/110", "000/011/010")
_NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Geometry:
    """Lookup tables for one board size.

    Cells are numbered row by row. Interior cells have a second number, which skips the cells of the outer wall.
    A set of cells, such as a room's floor, is an int whose bit n represents interior cell n.
    """

    rows: int
    cols: int
    steps: int
    """Length of the random walk that carves a room."""
    cell: tuple[int, ...]
    """Interior number -> cell number."""
    row: tuple[int, ...]
    """Interior number -> row."""
    col: tuple[int, ...]
    """Interior number -> column."""
    onward: tuple[tuple[int, ...], ...]
    """onward[direction][cell]: the next cell in that direction, clamped to the interior."""
    stamps: tuple[tuple[int, ...], ...]
    """stamps[mask][cell]: the set of interior cells that become floor when the mask is applied at the cell."""
    near: tuple[tuple[tuple[int, int, int], ...], ...]
    """near[interior cell]: one tuple per neighbour, in the order up, down, left, right. It contains the neighbour, its
    bit in a search key, and the cell on the opposite side (-1 if that is the outer wall)."""
    bit: tuple[int, ...]
    """Interior number -> the cell's bit in a search key, whose lowest bits contain the player's interior number."""


@lru_cache(maxsize=64)
def geometry(rows: int, cols: int) -> Geometry:
    """Return the cached tables for a board of this size (at least 3x3)."""
    inside = [(row, col) for row in range(1, rows - 1) for col in range(1, cols - 1)]
    number = {cell: index for index, cell in enumerate(inside)}
    low = len(inside).bit_length()
    return Geometry(
        rows=rows,
        cols=cols,
        steps=int(1.7 * (rows + cols)),
        cell=tuple(row * cols + col for row, col in inside),
        row=tuple(row for row, _ in inside),
        col=tuple(col for _, col in inside),
        onward=tuple(_onward(rows, cols, *direction) for direction in _DIRECTIONS),
        stamps=tuple(_stamps(rows, cols, mask.split("/"), number) for mask in _MASKS),
        near=tuple(_near(cell, number, low) for cell in inside),
        bit=tuple(1 << (low + index) for index in number.values()),
    )


def _onward(rows: int, cols: int, down: int, right: int) -> tuple[int, ...]:
    def clamp(value: int, top: int) -> int:
        return max(min(value, top), 1)

    return tuple(
        clamp(row + down, rows - 2) * cols + clamp(col + right, cols - 2) for row in range(rows) for col in range(cols)
    )


def _stamps(rows: int, cols: int, mask: list[str], number: dict[tuple[int, int], int]) -> tuple[int, ...]:
    offsets = [(row - 1, col - 1) for row in range(3) for col in range(3) if mask[row][col] == "1"]

    def stamp(row: int, col: int) -> int:
        cells = [(row + down, col + right) for down, right in offsets]
        return sum(1 << number[cell] for cell in cells if cell in number)

    return tuple(stamp(row, col) for row in range(rows) for col in range(cols))


def _near(cell: tuple[int, int], number: dict[tuple[int, int], int], low: int) -> tuple[tuple[int, int, int], ...]:
    row, col = cell
    return tuple(
        (there, 1 << (low + there), number.get((row - down, col - right), _NOWHERE))
        for down, right in _PULLS
        if (there := number.get((row + down, col + right))) is not None
    )


def why_infeasible(rows: int, cols: int, boxes: int, depth: int) -> str | None:
    """Return why no seed can yield such a room, as a clause for an error message; None if no reason is known.

    Reverse play must pull every box off its target and leave the player off all targets. Walls and additional boxes
    only make this harder, so a number of boxes that is impossible in an empty interior is also impossible with walls.
    """
    if rows < 3 or cols < 3:
        return "a board needs at least 3 rows and 3 columns, including the surrounding wall"
    if boxes < 1:
        return "a room needs at least one box"
    height, width = sorted((rows - 2, cols - 2))
    most = _most_boxes(height, width)
    if boxes > most:
        return f"its interior of {rows - 2}x{cols - 2} cells has space for at most {counted(most)}"
    if depth < boxes + 2:
        return f"pulling {counted(boxes)} off the targets requires a search depth of at least {boxes + 2}"
    return None


def counted(boxes: int) -> str:
    return f"{boxes} box" if boxes == 1 else f"{boxes} boxes"


def _most_boxes(height: int, width: int) -> int:
    """Return an upper bound on the number of boxes in an interior with height <= width.

    The bound is exact for up to 15 cells; the tests check every such size.
    """
    cells = height * width
    if width < 3:
        return 0  # a pull needs three cells in line
    if height == 1:
        return 1  # in a corridor, every step away from a box pulls it along
    if cells <= 15:
        return cells // 3  # found by an exhaustive search over all interiors of this size
    return (cells - 1) // 2  # each box needs its target's cell and another one; the player needs one
