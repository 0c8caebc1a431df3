"""The public set's 500 tuples agree with facts recorded from the reference, including its unpublished rooms."""

from collections import Counter
from functools import cache
from itertools import islice

import pytest

from rollyard.resources_servers.grl_sokoban.game import Room, canonical_board
from rollyard.resources_servers.grl_sokoban.generate_test_examples import tuples
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, Streams, generate
from rollyard.resources_servers.grl_sokoban.solver import solve

# Recorded from the reference: rows where it falls back to a salted seed, and rows where it crashes.
FALLING_BACK = """
    36 37 64 70 80 89 132 136 144 148 162 194 200 210 228 230 249 259 261 267 271 274 287 305 316 318 329 335 340 348
    355 364 373 397 401 408 418 429 439 460 463 499"""
CRASHING = """
    33 46 52 58 95 102 133 137 139 147 151 154 165 214 233 241 251 260 264 282 283 286 290 296 304 306 336 337 341 343
    360 363 374 379 398 417 422 426 434 447 450 458 471 483 498"""


@cache
def generated() -> dict[int, Room | None]:
    """Each row number's room; None if it was refused."""
    streams = Streams()

    def room(spec: RoomSpec) -> Room | None:
        try:
            return generate(spec, streams)
        except InfeasibleRoom:
            return None

    return {number: room(spec) for number, spec in enumerate(islice(tuples(42), 500), 1)}


def reproducible() -> list[Room]:
    return [room for room in generated().values() if room and room.tries == 1]


def six_by_six() -> list[Room]:
    streams = Streams()
    return [generate(RoomSpec(spec.seed), streams) for spec in islice(tuples(42), 500)]


def test_exactly_the_rows_that_crash_the_reference_are_refused() -> None:
    assert [number for number, room in generated().items() if room is None] == [int(word) for word in CRASHING.split()]


def test_exactly_the_rows_where_the_reference_falls_back_use_another_seed() -> None:
    other_seed = [number for number, room in generated().items() if room and room.tries > 1]
    assert other_seed == [int(word) for word in FALLING_BACK.split()]


def test_no_public_row_needs_more_than_seven_further_seeds() -> None:
    assert max(room.tries for room in generated().values() if room) == 8


@pytest.mark.parametrize(
    ("kind", "histogram", "longest"),
    [
        ("rows", [36, 79, 50, 63, 43, 33, 24, 16, 16, 11], 37),
        ("6x6", [47, 131, 52, 66, 78, 54, 22, 22, 18, 6], 11),
    ],
)
def test_the_optimal_moves_of_all_rooms_are_distributed_as_recorded(
    kind: str, histogram: list[int], longest: int
) -> None:
    moves: Counter[int] = Counter()
    for room in reproducible() if kind == "rows" else six_by_six():
        solution = solve(room)
        assert solution is not None
        moves[solution.moves] += 1
    assert [moves[number] for number in range(1, 11)] == histogram
    assert max(moves) == longest


@pytest.mark.parametrize(("kind", "boards", "puzzles"), [("rows", 404, 374), ("6x6", 474, 401)])
def test_the_numbers_of_distinct_boards_and_puzzles_are_as_recorded(kind: str, boards: int, puzzles: int) -> None:
    texts = [room.board() for room in (reproducible() if kind == "rows" else six_by_six())]
    assert (len(set(texts)), len({canonical_board(text) for text in texts})) == (boards, puzzles)
