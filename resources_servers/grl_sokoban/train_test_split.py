"""Which rooms train and which test: by what the puzzle is, so that no twin of a test room is ever trained on."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from rollyard.resources_servers.grl_sokoban.game import Room, canonical_board
from rollyard.resources_servers.grl_sokoban.levels import sealed

Split = Literal["train", "test"]


def puzzle_of_board(board: str) -> str:
    """One text for all boards that are the same puzzle: turned, mirrored, with thicker walls, or with other cells that
    the player cannot reach. Raises InvalidLevel if a box or target is one of those.
    """
    lines = sealed(board.split("\n")).split("\n")
    for _ in range(4):
        while len(lines) > 1 and set(lines[0] + lines[1]) == {"#"}:
            lines = lines[1:]
        lines = ["".join(column) for column in zip(*lines[::-1], strict=True)]
    return canonical_board("\n".join(lines))


def split_of(room: Room, test_share: float) -> Split:
    """The room's side. It follows from the puzzle alone, whatever other rows there are, and a room that tests at one
    share tests at every larger one.
    """
    digest = sha256(puzzle_of_board(room.board()).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < test_share * 2**64 else "train"
