"""Optimal solutions and deadlocks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from random import Random

import pytest

from rollyard.resources_servers.grl_sokoban.game import Game, Room
from rollyard.resources_servers.grl_sokoban.solver import UnsolvableRoom, fewest_moves, is_deadlocked, solve
from tests.unit.resources_servers.grl_sokoban.reference import levels, rows


def solves(room: Room, path: tuple[int, ...]) -> bool:
    game = Game(room, max_steps=len(path) + 1)
    return [game.step(action).done for action in path].index(True) == len(path) - 1 and game.success


@pytest.mark.parametrize(
    ("name", "most_states", "at_least"),
    [
        ("boxoban_unfiltered_test_100.txt", 3_000, 11),
        ("boxoban_medium_train_100.txt", 3_000, 7),
        ("boxoban_hard_20.txt", 10_000, 6),
        ("microban_155.xsb", 3_000, 48),
    ],
)
def test_the_optima_of_small_published_levels_match_their_labels(name: str, most_states: int, at_least: int) -> None:
    labels = [row for row in rows("levels/labels.jsonl") if row["set"] == name.split(".")[0]]
    solved = 0
    for board, label in zip(levels(name), labels, strict=True):
        room = Room.parse(board)
        solution = solve(room, most_states=most_states)
        if solution and label["optimal_moves"] and label["optimal_pushes"]:
            assert (solution.moves, solution.pushes) == (label["optimal_moves"], label["optimal_pushes"]), board
            assert solves(room, solution.path), board
            solved += 1
    assert solved >= at_least


Cell = tuple[int, int]
Position = tuple[Cell, frozenset[Cell]]
DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))


def distances(cells: set[Cell], targets: frozenset[Cell], count: int) -> tuple[list[Position], dict[Position, int]]:
    """All positions of a room, and the number of moves to solve each solvable one."""
    positions = [
        (player, boxes) for boxes in map(frozenset, combinations(sorted(cells), count)) for player in cells - boxes
    ]
    predecessors: dict[Position, list[Position]] = {}
    for player, boxes in positions:
        for down, right in DIRECTIONS:
            ahead, beyond = (player[0] + down, player[1] + right), (player[0] + 2 * down, player[1] + 2 * right)
            if ahead in cells and (ahead not in boxes or beyond in cells - boxes):
                after = (ahead, boxes - {ahead} | {beyond} if ahead in boxes else boxes)
                predecessors.setdefault(after, []).append((player, boxes))
    solution_length = {position: 0 for position in positions if position[1] == targets}
    queue = list(solution_length)
    for position in queue:
        for before in predecessors.get(position, ()):
            if before not in solution_length:
                solution_length[before] = solution_length[position] + 1
                queue.append(before)
    return positions, solution_length


def room_at(cells: set[Cell], targets: frozenset[Cell], position: Position, size: int) -> Room:
    player, boxes = position

    def symbol(cell: Cell) -> str:
        if cell not in cells:
            return "#"
        plain, covered = ("P", "S") if cell == player else ("X", "√") if cell in boxes else ("_", "O")
        return covered if cell in targets else plain

    return Room.parse("\n".join("".join(symbol((row, col)) for col in range(size)) for row in range(size)))


def rooms(rng: Random) -> Iterator[tuple[set[Cell], frozenset[Cell], int]]:
    while True:
        cells = {(row, col) for row in range(1, 6) for col in range(1, 6) if rng.random() < 0.55}
        count = rng.randint(1, 3)
        if 2 * count < len(cells) <= 14:
            yield cells, frozenset(rng.sample(sorted(cells), count)), count


def test_the_deadlock_flag_and_the_distance_are_exact_and_the_flag_is_null_when_the_search_ends_early() -> None:
    rng = Random(3)
    lost = solvable = undecided = 0
    for (cells, targets, count), _ in zip(rooms(rng), range(80), strict=False):
        positions, solution_length = distances(cells, targets, count)
        # Most positions of such rooms are lost, so solvable ones are sampled separately.
        samples = [
            rng.sample(population, min(30, len(population))) for population in (positions, list(solution_length))
        ]
        for position in chain.from_iterable(samples):
            room, distance = room_at(cells, targets, position, 7), solution_length.get(position)
            assert is_deadlocked(room) is (distance is None), room.board()
            if distance is None:
                lost += 1
                with pytest.raises(UnsolvableRoom):
                    fewest_moves(room)
            else:
                assert fewest_moves(room) == distance, room.board()
                solvable += 1
            limited = is_deadlocked(room, 2)
            assert limited in (None, distance is None), room.board()
            undecided += limited is None
    assert min(lost, solvable) > 1000 and undecided > 20
