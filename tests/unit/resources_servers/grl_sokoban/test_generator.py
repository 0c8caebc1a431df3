"""Rooms from seeds equal the reference's, and an impossible room is a clear error."""

from typing import Any

import pytest

from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate

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
    assert (len(reproducible), len(rooms())) == (89, 100)
    for specs, kind in (
        (map(spec_of, reproducible), "per_row"),
        ((RoomSpec(r["seed"]) for r in rooms()), "default_6x6_1box"),
    ):
        for spec, row in zip(specs, reproducible if kind == "per_row" else rooms(), strict=True):
            room, expected = generate(spec), row[kind]
            assert digits(room.fixed, room.cols) == expected["room_fixed"], row["level_id"]
            assert digits(room.state, room.cols) == expected["room_state"], row["level_id"]
            assert (room.board(), room.seed, room.tries) == (expected["board"], row["seed"], 1)


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
