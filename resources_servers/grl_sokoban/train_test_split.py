"""Assigns rooms to the training or test split by their puzzle, so that no variant of a test room is trained on."""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from rollyard.resources_servers.grl_sokoban.game import Room, canonical_board
from rollyard.resources_servers.grl_sokoban.levels import sealed

Split = Literal["train", "test"]


def puzzle_of_board(board: str) -> str:
    """Return a string that is the same for all boards of a puzzle. They may be rotated, mirrored, or differ in the
    thickness of walls and in unreachable cells. Raises InvalidLevel if a box or a target is unreachable.
    """
    lines = sealed(board.split("\n")).split("\n")
    for _ in range(4):
        while len(lines) > 1 and set(lines[0] + lines[1]) == {"#"}:
            lines = lines[1:]
        lines = ["".join(column) for column in zip(*lines[::-1], strict=True)]
    return canonical_board("\n".join(lines))


def split_of(room: Room, test_share: float) -> Split:
    """Return the room's split, which depends only on its puzzle and `test_share`.

    If the share is increased, the rooms that were in the test split remain in it.
    """
    digest = sha256(puzzle_of_board(room.board()).encode()).digest()
    return "test" if int.from_bytes(digest[:8], "big") < test_share * 2**64 else "train"
