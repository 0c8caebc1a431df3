"""Solves positions exactly: the fewest moves, the fewest pushes, and whether a position can still be solved."""

from dataclasses import dataclass
from functools import lru_cache

from rollyard.resources_servers.grl_sokoban.game import BOX, DOWN, LEFT, PLAYER, RIGHT, TARGET, UP, WALL, Room

MAX_STATES = 100_000
"""Default for the maximum number of positions that a search visits. It takes less than a second; 8x8 rooms with 3 boxes
need far fewer.
"""


class UnsolvableRoom(ValueError):
    """No sequence of moves solves the position."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The optimum for a position: the fewest moves and the fewest pushes, possibly in different solutions."""

    moves: int
    pushes: int
    path: tuple[int, ...]
    """A solution with the fewest moves, as actions (1 to 4)."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The parts of a room that do not change. A set of cells is an int with one bit per cell, row by row."""

    cells: int
    floor: int
    targets: int
    alive: int
    """The cells from which a single box can be pushed to a target; a box on any other cell is a deadlock."""
    deltas: dict[int, int]
    """Action -> the difference between the cell numbers after and before the move."""
    near: dict[int, tuple[tuple[int, int, int], ...]]
    """Floor cell -> one tuple per neighbouring floor cell: its offset, its bit, and the bit of the cell behind it, onto
    which a box would be pushed (0 if that cell is a wall or a deadlock). Bits are shifted as in the search keys, whose
    lowest bits contain the player's cell number."""


@dataclass(frozen=True, slots=True)
class _Play:
    level: _Level
    player: int
    boxes: int


def solve(room: Room, most_states: int = MAX_STATES) -> Solution | None:
    """Return the optimum for this position; None if it was not found within `most_states` positions per search.

    Raises UnsolvableRoom if there is no solution.
    """
    play = _play(room)
    # Moves first: their positions are ten times cheaper and more numerous, so an undecided search ends early.
    path = _fewest_moves(play, most_states)
    pushes = None if path is None else _fewest_pushes(play, most_states)
    return None if path is None or pushes is None else Solution(len(path), pushes, path)


def fewest_moves(room: Room, most_states: int = MAX_STATES) -> int | None:
    """Return the minimum number of moves left; None if `most_states` positions are not enough to find it.

    Raises UnsolvableRoom if there is no solution.
    """
    play = _play(room)
    # The search by pushes visits far fewer positions to detect a lost room.
    if _fewest_pushes(play, most_states) is None:
        return None
    path = _fewest_moves(play, most_states)
    return None if path is None else len(path)


@lru_cache(maxsize=16384)
def is_deadlocked(room: Room, most_states: int = MAX_STATES) -> bool | None:
    """Return whether the position can no longer be solved; None if `most_states` positions are not enough to decide.

    Cached, because undo and other rollouts of the task reach the same positions again.
    """
    try:
        return None if _fewest_pushes(_play(room), most_states) is None else False
    except UnsolvableRoom:
        return True


def _fewest_moves(play: _Play, most_states: int) -> tuple[int, ...] | None:
    """Run a breadth-first search over moves.

    The lowest bits of a key are the player's cell number; the other bits are the boxes.
    """
    near, width = play.level.near, _width(play.level)
    cell, goal = (1 << width) - 1, play.level.targets << width
    start = play.player | play.boxes << width
    predecessors: dict[int, int] = {start: start}
    if start & ~cell == goal:
        return ()
    layer = [start]
    while layer:
        following: list[int] = []
        for key in layer:
            if len(predecessors) > most_states:
                return None
            for delta, there, beyond in near[key & cell]:
                after = key + delta
                if key & there:
                    if not beyond or key & beyond:
                        continue
                    after ^= there | beyond
                if after in predecessors:
                    continue
                predecessors[after] = key
                if after & ~cell == goal:
                    return _retrace(predecessors, after, cell, play.level)
                following.append(after)
        layer = following
    raise UnsolvableRoom("no sequence of moves solves this position")


def _retrace(predecessors: dict[int, int], key: int, cell: int, level: _Level) -> tuple[int, ...]:
    action = {delta: action for action, delta in level.deltas.items()}
    path: list[int] = []
    while (before := predecessors[key]) != key:
        path.append(action[(key & cell) - (before & cell)])
        key = before
    return tuple(reversed(path))


def _fewest_pushes(play: _Play, most_states: int) -> int | None:
    """Run a breadth-first search over pushes.

    Two positions with the same boxes are equivalent if the player can walk from one to the other.
    """
    level, goal = play.level, play.level.targets
    if play.boxes == goal:
        return 0
    floor, alive, down = level.floor, level.alive, level.deltas[DOWN]
    layer = [(play.boxes, 1 << play.player)]
    walked: dict[int, int] = {}  # boxes -> the player's cells that were already tried with them
    states = pushes = 0
    while layer:
        pushes += 1
        following: list[tuple[int, int]] = []
        for boxes, player in layer:
            tried = walked.get(boxes, 0)
            if tried & player:
                continue
            states += 1
            if states > most_states:
                return None
            free = floor & ~boxes
            reach, before = player, 0
            while reach != before:
                before = reach
                reach |= (reach << 1 | reach >> 1 | reach << down | reach >> down) & free
            walked[boxes] = tried | reach
            # A box moves if the player can stand behind it and the cell ahead is free. This loop calls no function,
            # because it takes half of the time of a verdict.
            onto = alive & ~boxes
            for delta in (1, down):
                forward, back = boxes & reach << delta & onto >> delta, boxes & reach >> delta & onto << delta
                while forward:
                    box = forward & -forward
                    forward ^= box
                    if (after := boxes ^ box ^ box << delta) == goal:
                        return pushes
                    following.append((after, box))
                while back:
                    box = back & -back
                    back ^= box
                    if (after := boxes ^ box ^ box >> delta) == goal:
                        return pushes
                    following.append((after, box))
        layer = following
    raise UnsolvableRoom("no sequence of pushes brings every box to a target")


def _shift(cells: int, delta: int) -> int:
    return cells << delta if delta > 0 else cells >> -delta


def _width(level: _Level) -> int:
    return level.cells.bit_length()


def _bits(codes: bytes, wanted: int) -> int:
    return int(codes[::-1].translate(_only(wanted)), 2)


@lru_cache
def _only(wanted: int) -> bytes:
    return bytes(ord("1" if code == wanted else "0") for code in range(256))


def _play(room: Room) -> _Play:
    play = _Play(_level(room.rows, room.cols, room.fixed), room.state.index(PLAYER), _bits(room.state, BOX))
    if play.boxes & ~play.level.alive:
        raise UnsolvableRoom("a box is in a cell from which it cannot be pushed to any target")
    return play


@lru_cache(maxsize=256)
def _level(rows: int, cols: int, fixed: bytes) -> _Level:
    """Compute the parts of a room that do not change. Cached because a game checks for deadlocks after every push."""
    deltas = {UP: -cols, DOWN: cols, LEFT: -1, RIGHT: 1}
    cells = rows * cols
    targets, walls = _bits(fixed, TARGET), _bits(fixed, WALL)
    floor = ((1 << cells) - 1) ^ walls
    alive = _alive(targets, floor, tuple(deltas.values()))
    width = cells.bit_length()

    def bit(cell: int, among: int) -> int:
        return (1 << cell & among) << width

    near = {
        cell: tuple(
            (delta, bit(cell + delta, floor), bit(cell + 2 * delta, alive))
            for delta in deltas.values()
            if floor >> (cell + delta) & 1
        )
        for cell in range(cells)
        if floor >> cell & 1
    }
    return _Level(cells, floor, targets, alive, deltas, near)


def _alive(targets: int, floor: int, deltas: tuple[int, ...]) -> int:
    """Return the cells from which a single box can be pushed to a target, found by pulling boxes off the targets."""
    alive, before = targets, 0
    while alive != before:
        before = alive
        for delta in deltas:
            # From `cell` a push by delta reaches cell + delta, with the player at cell - delta.
            alive |= _shift(alive, -delta) & floor & _shift(floor, delta)
    return alive
