"""The board, the moves, the rewards and the observations."""

from __future__ import annotations

import base64
import io
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rollyard.resources_servers.grl_sokoban.game import (
    Game,
    Room,
    View,
    board_in,
    canonical_board,
    coordinates,
    parse_action,
    png,
)
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate
from rollyard.responses_api_models.conversion import to_items

from .reference import rooms, trajectories


def test_all_160_recorded_trajectories_replay_exactly_also_beyond_done() -> None:
    assert len(trajectories()) == 160
    for recorded in trajectories():
        game = Game(Room.parse(recorded["initial_board"]), recorded["max_steps"])
        total_at_done = None
        for action, board, reward, done, effective, success, total in recorded["steps"]:
            assert game.step(action) == (reward, done, effective, success), recorded["level_id"]
            assert (game.board(), game.total_reward) == (board, total), recorded["level_id"]
            total_at_done = total if done and total_at_done is None else total_at_done
        assert (total if total_at_done is None else total_at_done) == recorded["app_total_reward"], recorded["level_id"]


def test_a_room_and_its_board_text_agree() -> None:
    for recorded in rooms():
        for kind in ("per_row", "default_6x6_1box"):
            if board := recorded[kind]["board"]:
                room = Room.parse(board)
                digits = recorded[kind]["room_fixed"], recorded[kind]["room_state"]
                assert (room.fixed, room.state) == tuple(bytes(map(int, "".join(rows))) for rows in digits)
                assert room.board() == board


@pytest.mark.parametrize("value", ["", "north", "5", "0", 0, 5, -1, True, "up up", "x" * 10_000, "²"])
def test_an_invalid_action_is_rejected_with_the_valid_ones(value: str | int) -> None:
    with pytest.raises(ValueError, match="Up, Down, Left or Right") as raised:
        parse_action(value)
    assert len(str(raised.value)) < 120


@pytest.mark.parametrize(
    ("board", "reason"),
    [
        ("#####\n#POX?\n#####", "unknown symbols"),
        ("#####\n#POX#\n####", "equal lengths"),
        ("#####\n#POX_\n#####", "surrounded by wall"),
        ("#####\n#_OX#\n#####", "0 players"),
        ("#####\n#POO#\n#####", "0 boxes, 2 targets"),
        ("", "surrounded by wall"),
    ],
)
def test_an_invalid_board_is_rejected_with_the_reason(board: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Room.parse(board)


grids = st.integers(1, 5).flatmap(
    lambda cols: st.lists(st.text("#_OX√PS", min_size=cols, max_size=cols), min_size=1, max_size=5)
)


@given(grids, st.integers(0, 3), st.booleans())
def test_rotations_and_mirror_images_of_a_board_are_the_same_puzzle(grid: list[str], turns: int, mirror: bool) -> None:
    turned = grid
    for _ in range(turns):
        turned = ["".join(column) for column in zip(*turned[::-1], strict=True)]
    if mirror:
        turned = [line[::-1] for line in turned]
    assert canonical_board("\n".join(turned)) == canonical_board("\n".join(grid))


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


BOARDS = [*(generate(RoomSpec(seed, (6, 8), 2)).board() for seed in (5, 6, 7)), "######\n#S_√X#\n#_#O_#\n######"]


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_is_parsed_back_from_its_coordinates(board: str) -> None:
    assert board_in(f"So:\n{coordinates(board)}\n\nYour move?") == board
    assert board_in(board) is None


@pytest.mark.parametrize("tile_px", [8, 13, 64])
@pytest.mark.parametrize("board", BOARDS)
def test_every_symbol_looks_different_in_the_image(board: str, tile_px: int) -> None:
    picture = Image.open(io.BytesIO(png(board, tile_px))).convert("RGB")
    lines = board.split("\n")
    assert picture.size == (tile_px * len(lines[0]), tile_px * len(lines))
    tiles: dict[str, set[bytes]] = {}
    for row, line in enumerate(lines):
        for col, symbol in enumerate(line):
            left, top = col * tile_px, row * tile_px
            tile = picture.crop((left, top, left + tile_px, top + tile_px))
            tiles.setdefault(symbol, set()).add(tile.tobytes())
    assert all(len(images) == 1 for images in tiles.values())
    assert len(set.union(*tiles.values())) == len(tiles)


def test_a_result_with_an_image_has_content_parts_that_chat_engines_accept() -> None:
    answer = View(("text", "image"), 16).answer(BOARDS[0], {"done": False})
    assert isinstance(answer, list)
    text, image = answer
    assert orjson.loads(text["text"]) == {"observation": BOARDS[0], "done": False}
    decoded = Image.open(io.BytesIO(base64.b64decode(image["image_url"].partition(",")[2])))
    assert decoded.size == (8 * 16, 6 * 16)
    chat = [{"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "image_url": image["image_url"]}]}]
    assert to_items(chat)[0]["output"] == [image]
