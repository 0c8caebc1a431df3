"""Rooms from seeds equal the reference's, and an impossible room is a clear error."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate, why_infeasible

from .reference import rooms


def spec_of(row: dict[str, Any]) -> RoomSpec:
    rows, cols = row["dim_room"]
    return RoomSpec(row["seed"], (rows, cols), row["num_boxes"], row["search_depth"])


def rows_with_outcome(outcome: str) -> list[dict[str, Any]]:
    return [row for row in rooms() if row["per_row"]["outcome"] == outcome]


def digits(cells: bytes, cols: int) -> list[str]:
    return ["".join(map(str, cells[start : start + cols])) for start in range(0, len(cells), cols)]


def test_every_reproducible_public_room_is_generated_exactly() -> None:
    reproducible = rows_with_outcome("reproducible")
    assert len(reproducible) == 89
    for row in reproducible:
        room = generate(spec_of(row))
        expected = row["per_row"]
        assert digits(room.fixed, room.cols) == expected["room_fixed"], row["level_id"]
        assert digits(room.state, room.cols) == expected["room_state"], row["level_id"]
        assert (room.board(), room.seed, room.tries) == (expected["board"], row["seed"], 1)


def test_every_public_seed_generates_the_reference_room_of_6x6_with_one_box() -> None:
    assert len(rooms()) == 100
    for row in rooms():
        room = generate(RoomSpec(row["seed"]))
        expected = row["default_6x6_1box"]
        assert digits(room.fixed, 6) == expected["room_fixed"], row["level_id"]
        assert digits(room.state, 6) == expected["room_state"], row["level_id"]


@pytest.mark.parametrize("salt", ["0", "1"])
def test_the_references_fallback_rooms_come_from_its_salted_seeds(salt: str) -> None:
    fallback_rows = rows_with_outcome("nonreproducible_salted_seed")
    for row, seeds in zip(fallback_rows, salted_seeds([row["seed"] for row in fallback_rows], salt), strict=True):
        spec = spec_of(row)
        candidates = (generate(RoomSpec(seed, spec.dim_room, spec.num_boxes)) for seed in seeds)
        room = next(room for room in candidates if room.tries == 1)
        assert room.board() == row["per_row"][f"board_if_PYTHONHASHSEED_{salt}"], row["level_id"]


def salted_seeds(seeds: list[int], salt: str) -> Iterator[list[int]]:
    """For each seed, the seed and the ten next ones of the reference in a process with this PYTHONHASHSEED."""
    program = (
        "import sys\n"
        "for seed in sys.argv[1:]:\n"
        "    for _ in range(11):\n"
        "        print(seed, end=' ')\n"
        "        seed = abs(hash(str(seed))) % 2**32\n"
        "    print()\n"
    )
    command = [sys.executable, "-c", program, *map(str, seeds)]
    environment = {**os.environ, "PYTHONHASHSEED": salt}
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return ([int(seed) for seed in line.split()] for line in out.splitlines())


@pytest.mark.parametrize(
    ("dim_room", "boxes", "depth", "reason"),
    [
        ((4, 4), 1, 100, "2x2 .*at most 0 boxes"),
        ((4, 6), 3, 100, "2x4 .*at most 2 boxes"),
        ((6, 4), 3, 100, "4x2 .*at most 2 boxes"),
        ((3, 9), 2, 100, "1x7 .*at most 1 box"),
        ((8, 8), 18, 100, "at most 17 boxes"),
        ((2, 9), 1, 100, "3 rows .*3 columns"),
        ((9, 0), 1, 100, "3 rows .*3 columns"),
        ((-5, 9), 1, 100, "3 rows .*3 columns"),
        ((6, 6), 0, 100, "at least one box"),
        ((6, 6), 2, 3, "depth .*at least 4"),
    ],
)
def test_an_impossible_geometry_is_rejected_with_reason_and_advice(
    dim_room: tuple[int, int], boxes: int, depth: int, reason: str
) -> None:
    with pytest.raises(InfeasibleRoom, match=f"{reason}.*larger board, fewer boxes"):
        generate(RoomSpec(1, dim_room, boxes, depth))


@pytest.mark.parametrize(("height", "width"), [(1, 3), (1, 6), (2, 2), (2, 3), (2, 4), (2, 5), (3, 3)])
def test_the_rejections_agree_with_an_exhaustive_search(height: int, width: int) -> None:
    cells = height * width
    for boxes in range(1, (cells - 1) // 2 + 1):
        possible = any(is_feasible(height, width, targets) for targets in combinations(range(cells), boxes))
        assert (why_infeasible(height + 2, width + 2, boxes, 100) is None) == possible, boxes


def is_feasible(height: int, width: int, targets: tuple[int, ...]) -> bool:
    """Whether a player can pull all boxes off these targets and leave them, in an interior without walls."""
    cells = range(height * width)
    goals = set(targets)
    frontier = [(cell, frozenset(targets)) for cell in cells if cell not in goals]
    seen = set(frontier)
    while frontier:
        player, boxes = frontier.pop()
        if not goals & {player, *boxes}:
            return True
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            row, col = player // width + down, player % width + right
            target = row * width + col
            if not (0 <= row < height and 0 <= col < width) or target in boxes:
                continue
            row, col = player // width - down, player % width - right
            pulled_from = row * width + col
            pulls = 0 <= row < height and 0 <= col < width and pulled_from in boxes
            after = (target, boxes - {pulled_from} | {player} if pulls else boxes)
            if after not in seen:
                seen.add(after)
                frontier.append(after)
    return False


def test_a_geometry_with_too_few_rooms_fails_after_a_bounded_number_of_seeds() -> None:
    with pytest.raises(InfeasibleRoom, match="nor the next 63"):
        generate(RoomSpec(1, (5, 5), 3, search_depth=5))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_the_reference_does_not_support_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        RoomSpec(seed)


def test_when_the_reference_falls_back_the_next_seed_with_a_room_is_used() -> None:
    for row in rows_with_outcome("nonreproducible_salted_seed"):
        spec = spec_of(row)
        room = generate(spec)
        seed = spec.seed
        for _ in range(room.tries - 1):
            seed = (1664525 * seed + 1013904223) % 2**32
        assert room.seed == seed
        assert 1 < room.tries <= 8
        again = generate(RoomSpec(seed, spec.dim_room, spec.num_boxes))
        assert (again.board(), again.tries) == (room.board(), 1)
