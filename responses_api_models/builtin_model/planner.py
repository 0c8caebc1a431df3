"""Finds the shortest Sokoban solution by breadth-first search over (player, boxes); each state is one integer.

The low bits are the player's cell, followed by one bit per cell for the boxes. Only floor cells are numbered, so the
state of an ordinary room fits in one or two machine words. Boxes must not enter cells from which no target can be
reached, so unsolvable positions are detected quickly.
"""

from __future__ import annotations

from itertools import pairwise

MOVES = ("Up", "Down", "Left", "Right")
Exits = list[tuple[int, int, int]]
"""Exits of a cell: the next cell, its box bit, and the bits that change if a box on it is pushed (0 if it cannot be
pushed)."""


def plan(board: str, limit: int = 50_000) -> tuple[str, ...] | None:
    """Return a shortest solution for `board`; None if searching `limit` positions finds no solution."""
    flat, stride = _flat(board)
    cells = [at for at, symbol in enumerate(flat) if symbol != "#"]
    number = {at: index for index, at in enumerate(cells)}
    shift = len(cells).bit_length()
    live = _live(flat, stride)
    exits = [_exits(at, stride, number, shift, live) for at in cells]
    state = astray = 0
    for index, at in enumerate(cells):
        symbol = flat[at]
        bit = 1 << (shift + index)
        if symbol in "X√":
            state |= bit
            if at not in live:
                return None
        elif symbol in "PS":
            state |= index
        if symbol not in "O√S":
            astray |= bit
    if not state & astray:
        return ()
    came_from = _search(state, astray, exits, (1 << shift) - 1, limit)
    if came_from is None:
        return None
    steps = {-stride: "Up", stride: "Down", -1: "Left", 1: "Right"}
    path = [cells[at & ((1 << shift) - 1)] for at in came_from]
    return tuple(steps[there - here] for here, there in pairwise(path))


def _search(start: int, astray: int, exits: list[Exits], player: int, limit: int) -> list[int] | None:
    """Return the states from `start` to the nearest state without a box on one of the `astray` cells; None if none is
    found.
    """
    came_from = {start: start}
    frontier = [start]
    while frontier and len(came_from) < limit:
        reached: list[int] = []
        for state in frontier:
            here = state & player
            boxes = state ^ here
            for cell, box, pushed in exits[here]:
                if not boxes & box:
                    following = boxes | cell
                    if following not in came_from:
                        came_from[following] = state
                        reached.append(following)
                elif pushed and not boxes & (pushed ^ box):
                    following = (boxes ^ pushed) | cell
                    if following not in came_from:
                        came_from[following] = state
                        if not following & astray:
                            return _back(following, came_from)
                        reached.append(following)
        frontier = reached
    return None


def _back(state: int, came_from: dict[int, int]) -> list[int]:
    path = [state]
    while (before := came_from[state]) != state:
        path.append(before)
        state = before
    path.reverse()
    return path


def _flat(board: str) -> tuple[str, int]:
    """Return the board as one string surrounded by walls, and its row stride."""
    rows = board.split("\n")
    width = max(map(len, rows))
    stride = width + 1
    return "#" * stride + "#" + "#".join(row.ljust(width, "#") for row in rows) + "#" * (stride + 1), stride


def _live(flat: str, stride: int) -> set[int]:
    """Return the cells from which a single box can be pushed to a target, found by pulling boxes from the targets."""
    todo = [at for at, symbol in enumerate(flat) if symbol in "O√S"]
    live = set(todo)
    while todo:
        at = todo.pop()
        for step in (-stride, stride, -1, 1):
            pulled = at + step
            if pulled not in live and flat[pulled] != "#" and flat[pulled + step] != "#":
                live.add(pulled)
                todo.append(pulled)
    return live


def _exits(at: int, stride: int, number: dict[int, int], shift: int, live: set[int]) -> Exits:
    exits = []
    for step in (-stride, stride, -1, 1):
        if (cell := number.get(at + step)) is not None:
            bit = 1 << (shift + cell)
            behind = at + 2 * step
            exits.append((cell, bit, bit | 1 << (shift + number[behind]) if behind in live else 0))
    return exits
