"""Computes the eight rotated and reflected variants of a board, and the corresponding moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from rollyard.resources_servers.grl_sokoban.game import DOWN, LEFT, RIGHT, UP, Room
from rollyard.resources_servers.grl_sokoban.solver import Solution

SymmetryName = Literal[
    "same", "turn90", "turn180", "turn270", "mirror", "mirror_turn90", "mirror_turn180", "mirror_turn270"
]
"""Names of the symmetries. The board is first mirrored horizontally, then rotated clockwise by the given angle."""
NAMES: tuple[SymmetryName, ...] = get_args(SymmetryName)

_MIRRORED = {UP: UP, DOWN: DOWN, LEFT: RIGHT, RIGHT: LEFT}
_TURNED = {UP: RIGHT, RIGHT: DOWN, DOWN: LEFT, LEFT: UP}


@dataclass(frozen=True, slots=True)
class Symmetry:
    """One of the eight symmetries of a square: rotations, with or without a reflection."""

    mirrored: bool
    turns: int
    """Number of clockwise quarter turns."""

    @classmethod
    def named(cls, name: SymmetryName) -> Symmetry:
        index = NAMES.index(name)
        return cls(index >= 4, index % 4)

    def room(self, room: Room) -> Room:
        rows, cols = (room.cols, room.rows) if self.turns % 2 else (room.rows, room.cols)
        fixed, state = (self._cells(codes, room.cols) for codes in (room.fixed, room.state))
        return replace(room, rows=rows, cols=cols, fixed=fixed, state=state)

    def action(self, action: int) -> int:
        """Return the corresponding move (1 to 4) in the transformed room."""
        action = _MIRRORED[action] if self.mirrored else action
        for _ in range(self.turns):
            action = _TURNED[action]
        return action

    def solution(self, solution: Solution) -> Solution:
        return replace(solution, path=tuple(map(self.action, solution.path)))

    def _cells(self, codes: bytes, cols: int) -> bytes:
        lines = [codes[start : start + cols] for start in range(0, len(codes), cols)]
        if self.mirrored:
            lines = [line[::-1] for line in lines]
        for _ in range(self.turns):
            lines = [bytes(column) for column in zip(*lines[::-1], strict=True)]
        return b"".join(lines)


def distinct(room: Room) -> list[tuple[SymmetryName, Room]]:
    """Return the room's distinct variants and their names. A symmetric board has fewer than eight."""
    images: dict[str, tuple[SymmetryName, Room]] = {}
    for name in NAMES:
        image = Symmetry.named(name).room(room)
        images.setdefault(image.board(), (name, image))
    return list(images.values())
