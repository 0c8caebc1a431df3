"""Generates rooms from seeds. The same seed yields the same room as in the reference implementation.

Raises InfeasibleRoom if no room with the requested parameters exists.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple

from numpy.random import MT19937, RandomState

from rollyard.resources_servers.grl_sokoban.game import BOX, FLOOR, PLAYER, TARGET, Room

LAYOUTS_A_SEED = 4
"""Number of layouts that the reference generates from a seed before it gives up on the seed."""
MAX_SEEDS = 64
"""Maximum number of seeds tried per room; the rows of the public dataset need at most 8."""
_SEEDS = 2**32


class InfeasibleRoom(ValueError):
    """No room exists for this specification, or none of the tried seeds yielded one."""


@dataclass(frozen=True, slots=True)
class RoomSpec:
    """The parameters that determine a room."""

    seed: int
    """An integer from 0 to 2**32 - 1."""
    dim_room: tuple[int, int] = (6, 6)
    """Rows and columns, including the outer wall."""
    num_boxes: int = 1
    search_depth: int = 100
    """Maximum number of moves in the reverse play, the backward search from the solved room."""


class Streams(threading.local):
    """The reference's two random number generators. Each thread has its own."""

    def __init__(self) -> None:
        self._python = Random()
        self._mersenne = MT19937()
        self._numpy = RandomState(self._mersenne)
        self._words: list[int] = []
        self.random: Callable[[], float] = self._python.random
        self.bits: Callable[[int], int] = self._python.getrandbits

    def seed(self, seed: int) -> None:
        self._python.seed(seed)
        self._numpy.seed(seed)
        self._words.clear()

    def below(self, count: int) -> int:
        """Draw an integer below `count` like Python's `randint`, `choice` and `sample`.

        Like them, it consumes random bits even if `count` is 1.
        """
        width = count.bit_length()
        drawn = self.bits(width)
        while drawn >= count:
            drawn = self.bits(width)
        return drawn

    def numpy_below(self, count: int) -> int:
        """Draw an integer below `count` like numpy's legacy `randint`, which consumes no bits if `count` is 1."""
        mask = (1 << (count - 1).bit_length()) - 1
        while mask:
            if not self._words:
                # Drawn in batches, because one call takes as long as drawing a dozen words.
                self._words = self._mersenne.random_raw(16)[::-1].tolist()
            drawn = self._words.pop() & mask
            if drawn < count:
                return drawn
        return 0


@lru_cache
def _streams() -> Streams:
    """Return the only instance, because creating the generators takes a third of the time of generating a room."""
    return Streams()


def generate(spec: RoomSpec) -> Room:
    """Generate the room for a specification.

    If a seed yields no room, (1664525 * seed + 1013904223) mod 2**32 is tried next, up to MAX_SEEDS seeds in total.
    Raises InfeasibleRoom if no room can exist or none of these seeds yields one.
    """
    rows, cols = spec.dim_room
    description = f"a {rows}x{cols} room with {counted(spec.num_boxes)}"
    if reason := why_infeasible(rows, cols, spec.num_boxes, spec.search_depth):
        advice = "use a larger board, fewer boxes or a deeper search"
        raise InfeasibleRoom(f"{description} cannot exist: {reason}; {advice}")
    streams, tables = _streams(), geometry(rows, cols)
    seed = spec.seed
    for tries in range(1, MAX_SEEDS + 1):
        streams.seed(seed)
        if made := _from_seed(tables, spec, streams):
            return Room(rows, cols, *made, seed, tries)
        seed = (1664525 * seed + 1013904223) % _SEEDS
    raise InfeasibleRoom(
        f"found no seed for {description}: neither seed {spec.seed} nor the next {MAX_SEEDS - 1} seeds yield one; "
        "use a larger board, fewer boxes or a deeper search"
    )


def _from_seed(tables: Geometry, spec: RoomSpec, streams: Streams) -> tuple[bytes, bytes] | None:
    for _ in range(LAYOUTS_A_SEED):
        floor = _carve(tables, streams)
        free = [cell for cell in range(len(tables.cell)) if floor >> cell & 1]
        if len(free) <= spec.num_boxes + 1:
            return None
        player = free.pop(streams.numpy_below(len(free)))
        targets = tuple(free.pop(streams.numpy_below(len(free))) for _ in range(spec.num_boxes))
        start = reverse_play(tables, floor, targets, player, spec.search_depth)
        if start.distance:
            return _cells(tables, floor, targets, start.boxes, _walk(tables, floor, start, streams))
    return None


def _carve(tables: Geometry, streams: Streams) -> int:
    """Generate a random layout and return its floor as a set of interior cells, with one bit per cell."""
    random, bits, onward, stamps = streams.random, streams.bits, tables.onward, tables.stamps
    ahead = onward[streams.below(4)]
    cell = (1 + streams.below(tables.rows - 1)) * tables.cols
    cell += 1 + streams.below(tables.cols - 1)
    floor = 0
    for _ in range(tables.steps):
        if random() < 0.35:
            ahead = onward[streams.below(4)]
        cell = ahead[cell]
        mask = bits(3)
        while mask >= 5:
            mask = bits(3)
        floor |= stamps[mask][cell]
    return floor


def _walk(tables: Geometry, floor: int, start: Start, streams: Streams) -> int:
    player = start.player
    if streams.random() > (0.8 if start.distance == 1 else 0.5):
        return player
    seen = {player, *start.boxes}
    for taken in (1, 2, 3):
        options = [there for there, *_ in tables.near[player] if floor >> there & 1 and there not in seen]
        if not options:
            break
        player = options[streams.below(len(options))]
        seen.add(player)
        if taken < 3 and streams.random() > 0.5:
            break
    return player


def _cells(
    tables: Geometry, floor: int, targets: tuple[int, ...], boxes: tuple[int, ...], player: int
) -> tuple[bytes, bytes]:
    fixed = bytearray(tables.rows * tables.cols)
    for number, cell in enumerate(tables.cell):
        if floor >> number & 1:
            fixed[cell] = FLOOR
    for target in targets:
        fixed[tables.cell[target]] = TARGET
    state = bytearray(fixed)
    for box in boxes:
        state[tables.cell[box]] = BOX
    state[tables.cell[player]] = PLAYER
    return bytes(fixed), bytes(state)


MAX_EXPLORED = 300_000
"""Number of explored positions after which the reference stops its search."""


class Start(NamedTuple):
    """The best start position that was found. Cells are given as interior numbers (see `Geometry`)."""

    player: int
    boxes: tuple[int, ...]
    """The boxes' cells, in the order of their targets."""
    distance: int
    """Sum of the Manhattan distances of the boxes from their targets, in cells; 0 if no position was found."""


def reverse_play(geometry: Geometry, floor: int, targets: tuple[int, ...], player: int, depth: int) -> Start:
    """Search depth-first for the position with the highest score: the number of box changes times the distance.

    A box change is a pull of a different box than the last one that was pulled.

    `floor` is a set of interior cells, with one bit per cell. Positions must be searched in the same order as in the
    reference, because the number of box changes is counted at the first visit to a position. Any other order would find
    different rooms.

    A position's key is one int. It contains the player's cell, one bit per occupied cell (including walls), and one bit
    per box that was never pulled, because the reference distinguishes these from boxes that were pulled.
    """
    near, bit, row, col = geometry.near, geometry.bit, geometry.row, geometry.col
    still = [bit[-1] << order for order in range(1, len(targets) + 1)]
    goals = sum(bit[target] for target in targets)
    walls = ((1 << len(bit)) - 1 ^ floor) * bit[0]
    key = player + walls + goals + sum(still)

    best, best_score = Start(player, targets, 0), 0
    explored: set[int] = set()
    stack = [(key, player, targets, 0, 0, -1, depth - 1)]
    while stack:
        key, player, boxes, changes, distance, last, left = stack.pop()
        if key in explored:
            continue
        if len(explored) >= MAX_EXPLORED:
            break
        explored.add(key)
        if changes * distance > best_score and not key & goals and player not in targets:
            best, best_score = Start(player, boxes, distance), changes * distance
        if left <= 1:
            continue
        for there, taken, behind in near[player]:
            if key & taken:
                continue
            if behind in boxes:
                order = boxes.index(behind)
                after = (key & ~(bit[behind] | still[order]) | bit[player]) + there - player
                if after in explored:
                    continue
                target = targets[order]
                nearer = abs(row[behind] - row[target]) + abs(col[behind] - col[target])
                moved = distance - nearer + abs(row[player] - row[target]) + abs(col[player] - col[target])
                pulled = (*boxes[:order], player, *boxes[order + 1 :])
                stack.append((after, there, pulled, changes + (order != last), moved, order, left - 1))
            elif (after := key + there - player) not in explored:
                stack.append((after, there, boxes, changes, distance, last, left - 1))
    return best


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
