"""Rooms from seeds: identical to the reference's, and a definite error if no room exists."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, Streams, generate
from rollyard.resources_servers.grl_sokoban.geometry import why_infeasible

from .reference import rooms


def spec_of(row: dict[str, Any]) -> RoomSpec:
    rows, cols = row["dim_room"]
    return RoomSpec(row["seed"], (rows, cols), row["num_boxes"], row["search_depth"])


def of_outcome(outcome: str) -> list[dict[str, Any]]:
    return [row for row in rooms() if row["per_row"]["outcome"] == outcome]


def digits(cells: bytes, cols: int) -> list[str]:
    return ["".join(map(str, cells[start : start + cols])) for start in range(0, len(cells), cols)]


def test_every_reproducible_public_room_is_made_cell_by_cell() -> None:
    reproducible = of_outcome("reproducible")
    assert len(reproducible) == 89
    for row in reproducible:
        room = generate(spec_of(row))
        wanted = row["per_row"]
        assert digits(room.fixed, room.cols) == wanted["room_fixed"], row["level_id"]
        assert digits(room.state, room.cols) == wanted["room_state"], row["level_id"]
        assert (room.board(), room.seed, room.tries) == (wanted["board"], row["seed"], 1)


def test_every_public_seed_makes_the_reference_room_of_6x6_and_one_box() -> None:
    assert len(rooms()) == 100
    for row in rooms():
        room = generate(RoomSpec(row["seed"]))
        wanted = row["default_6x6_1box"]
        assert digits(room.fixed, 6) == wanted["room_fixed"], row["level_id"]
        assert digits(room.state, 6) == wanted["room_state"], row["level_id"]


@pytest.mark.parametrize("salt", ["0", "1"])
def test_along_the_references_own_salted_seeds_its_fallback_rooms_appear(salt: str) -> None:
    fallen = of_outcome("nonreproducible_salted_seed")
    for row, seeds in zip(fallen, salted([row["seed"] for row in fallen], salt), strict=True):
        spec = spec_of(row)
        made = (generate(RoomSpec(seed, spec.dim_room, spec.num_boxes)) for seed in seeds)
        room = next(room for room in made if room.tries == 1)
        assert room.board() == row["per_row"][f"board_if_PYTHONHASHSEED_{salt}"], row["level_id"]


def salted(seeds: list[int], salt: str) -> Iterator[list[int]]:
    """Each seed and the ten the reference goes on with, in a process whose string hashes have this salt."""
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


def test_where_the_reference_falls_back_the_next_seed_of_the_sequence_with_a_room_is_used() -> None:
    for row in of_outcome("nonreproducible_salted_seed"):
        spec = spec_of(row)
        room = generate(spec)
        seed = spec.seed
        for _ in range(room.tries - 1):
            seed = (1664525 * seed + 1013904223) % 2**32
        assert room.seed == seed
        assert 1 < room.tries <= 8
        again = generate(RoomSpec(seed, spec.dim_room, spec.num_boxes))
        assert (again.board(), again.tries) == (room.board(), 1)


def test_every_public_row_that_crashes_the_reference_is_refused() -> None:
    crashing = of_outcome("always_recursion_error")
    assert len(crashing) == 5
    for row in crashing:
        with pytest.raises(InfeasibleRoom, match=r"cannot exist: its interior of .* has space for at most \d box"):
            generate(spec_of(row))


@pytest.mark.parametrize(
    ("dim_room", "boxes", "depth", "reason"),
    [
        ((4, 4), 1, 100, "interior of 2x2 cells has space for at most 0 boxes"),
        ((4, 6), 3, 100, "interior of 2x4 cells has space for at most 2 boxes"),
        ((6, 4), 3, 100, "interior of 4x2 cells has space for at most 2 boxes"),
        ((3, 9), 2, 100, "interior of 1x7 cells has space for at most 1 box"),
        ((8, 8), 18, 100, "has space for at most 17 boxes"),
        ((2, 9), 1, 100, "3 rows and 3 columns"),
        ((9, 0), 1, 100, "3 rows and 3 columns"),
        ((-5, 9), 1, 100, "3 rows and 3 columns"),
        ((6, 6), 0, 100, "at least one box"),
        ((6, 6), 2, 3, "search depth of at least 4"),
    ],
)
def test_an_impossible_geometry_is_rejected_with_reason_and_advice(
    dim_room: tuple[int, int], boxes: int, depth: int, reason: str
) -> None:
    with pytest.raises(InfeasibleRoom, match=f"{reason}.*use a larger board, fewer boxes or a deeper search"):
        generate(RoomSpec(1, dim_room, boxes, depth))


@pytest.mark.parametrize(("height", "width"), [(1, 3), (1, 6), (2, 2), (2, 3), (2, 4), (2, 5), (3, 3)])
def test_the_rejections_agree_with_an_exhaustive_search(height: int, width: int) -> None:
    cells = height * width
    for boxes in range(1, (cells - 1) // 2 + 1):
        possible = any(holds(height, width, targets) for targets in combinations(range(cells), boxes))
        assert (why_infeasible(height + 2, width + 2, boxes, 100) is None) == possible, boxes


def holds(height: int, width: int, targets: tuple[int, ...]) -> bool:
    """Whether some player can pull all boxes off these targets and leave them, in an interior without walls."""
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
            there = row * width + col
            if not (0 <= row < height and 0 <= col < width) or there in boxes:
                continue
            row, col = player // width - down, player % width - right
            behind = row * width + col
            drags = 0 <= row < height and 0 <= col < width and behind in boxes
            after = (there, boxes - {behind} | {player} if drags else boxes)
            if after not in seen:
                seen.add(after)
                frontier.append(after)
    return False


def test_a_geometry_with_too_rare_rooms_ends_after_a_bounded_number_of_seeds() -> None:
    with pytest.raises(InfeasibleRoom, match="nor the next 63"):
        generate(RoomSpec(1, (5, 5), 3, search_depth=5))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_the_reference_cannot_use_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        RoomSpec(seed)


def test_streams_carry_nothing_from_one_room_to_the_next() -> None:
    streams = Streams()
    specs = [RoomSpec(seed, (7, 7), 1 + seed % 3) for seed in range(30)]
    assert [generate(spec, streams) for spec in specs] == [generate(spec) for spec in specs]
