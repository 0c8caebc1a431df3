"""Observations: coordinates and images contain the complete board."""

from __future__ import annotations

import base64
import io
import re

import orjson
import pytest
from PIL import Image

from rollyard.resources_servers.grl_sokoban import observation
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.observation import View, board_in, coordinates, png
from rollyard.responses_api_models.conversion import to_items

BOARDS = [
    *(generate(RoomSpec(seed, (6, 8), 2)).board() for seed in (5, 6, 7)),
    "######\n#S_√X#\n#_#O_#\n######",
]


def from_coordinates(text: str) -> str:
    """Parse the board from its description."""
    rows, cols = (int(number) + 1 for number in re.findall(r"to \((\d+), (\d+)\)", text)[0])
    listed = {
        name: {(int(row), int(col)) for row, col in re.findall(r"\((\d+), (\d+)\)", cells)}
        for name, cells in re.findall(r"^([\w ]+): (.*)$", text, re.MULTILINE)
    }

    def symbol(cell: tuple[int, int]) -> str:
        if cell in listed["Walls inside"] or cell[0] in (0, rows - 1) or cell[1] in (0, cols - 1):
            return "#"
        target = cell in listed["Targets"]
        if cell in listed["Player"]:
            return "S" if target else "P"
        if cell in listed["Boxes"]:
            assert target == (cell in listed["Boxes on targets"])
            return "√" if target else "X"
        return "O" if target else "_"

    return "\n".join("".join(symbol((row, col)) for col in range(cols)) for row in range(rows))


@pytest.mark.parametrize("board", BOARDS)
def test_the_coordinates_contain_the_complete_board(board: str) -> None:
    assert from_coordinates(coordinates(board)) == board


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


def test_no_image_is_drawn_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def draw(board: str, tile_px: int) -> str:
        drawn.append(board)
        return "data:,"

    monkeypatch.setattr(observation, "data_url", draw)
    assert View(("text", "coordinates"), 32).answer(BOARDS[0], {}) == {
        "observation": f"{BOARDS[0]}\n\n{coordinates(BOARDS[0])}"
    }
    assert drawn == []
    View(("image",), 32).answer(BOARDS[0], {})
    assert drawn == [BOARDS[0]]
