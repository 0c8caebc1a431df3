"""Every position of small rooms, classified by an exhaustive search from the solved ones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from random import Random

import pytest

from rollyard.resources_servers.grl_sokoban.game import Room
from rollyard.resources_servers.grl_sokoban.solver import UnsolvableRoom, fewest_moves, is_deadlocked

Cell = tuple[int, int]
Position = tuple[Cell, frozenset[Cell]]
WAYS = ((-1, 0), (1, 0), (0, -1), (0, 1))


def distances(cells: set[Cell], targets: frozenset[Cell], count: int) -> tuple[list[Position], dict[Position, int]]:
    """All positions of a room, and how far those that can be solved are from it."""
    positions = [(man, boxes) for boxes in map(frozenset, combinations(sorted(cells), count)) for man in cells - boxes]
    leading: dict[Position, list[Position]] = {}
    for man, boxes in positions:
        for down, right in WAYS:
            near, far = (man[0] + down, man[1] + right), (man[0] + 2 * down, man[1] + 2 * right)
            if near in cells and (near not in boxes or far in cells - boxes):
                after = (near, boxes - {near} | {far} if near in boxes else boxes)
                leading.setdefault(after, []).append((man, boxes))
    far_off = {position: 0 for position in positions if position[1] == targets}
    queue = list(far_off)
    for position in queue:
        for before in leading.get(position, ()):
            if before not in far_off:
                far_off[before] = far_off[position] + 1
                queue.append(before)
    return positions, far_off


def drawn(cells: set[Cell], targets: frozenset[Cell], position: Position, size: int) -> Room:
    man, boxes = position

    def symbol(cell: Cell) -> str:
        if cell not in cells:
            return "#"
        plain, covered = ("P", "S") if cell == man else ("X", "√") if cell in boxes else ("_", "O")
        return covered if cell in targets else plain

    return Room.parse("\n".join("".join(symbol((row, col)) for col in range(size)) for row in range(size)))


def rooms(rng: Random) -> Iterator[tuple[set[Cell], frozenset[Cell], int]]:
    while True:
        cells = {(row, col) for row in range(1, 6) for col in range(1, 6) if rng.random() < 0.55}
        count = rng.randint(1, 3)
        if 2 * count < len(cells) <= 14:
            yield cells, frozenset(rng.sample(sorted(cells), count)), count


def test_the_flag_and_the_distance_are_exact_in_thousands_of_positions_and_null_where_the_search_ends_early() -> None:
    rng = Random(3)
    lost = solvable = undecided = 0
    for (cells, targets, count), _ in zip(rooms(rng), range(80), strict=False):
        positions, far_off = distances(cells, targets, count)
        # Most positions of such rooms are lost: as many of the others, where there are some.
        some = [rng.sample(among, min(30, len(among))) for among in (positions, list(far_off))]
        for position in chain.from_iterable(some):
            room, distance = drawn(cells, targets, position, 7), far_off.get(position)
            assert is_deadlocked(room) is (distance is None), room.board()
            if distance is None:
                lost += 1
                with pytest.raises(UnsolvableRoom):
                    fewest_moves(room)
            else:
                assert fewest_moves(room) == distance, room.board()
                solvable += 1
            early = is_deadlocked(room, 2)
            assert early in (None, distance is None), room.board()
            undecided += early is None
    assert min(lost, solvable) > 1000 and undecided > 20
