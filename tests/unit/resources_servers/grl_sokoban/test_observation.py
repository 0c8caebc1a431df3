"""Observations: coordinates and images contain the complete board."""

from __future__ import annotations

import base64
import io

import orjson
import pytest
from PIL import Image

from rollyard.resources_servers.grl_sokoban.generator import RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.observation import View, board_in, coordinates, png
from rollyard.responses_api_models.conversion import to_items

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
