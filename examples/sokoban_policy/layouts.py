"""The rooms of the evaluation, of the validation during training, and of reinforcement learning.

A layout is the walls and the target of a 6x6 room with one box, with the distance of every position to the solution.

A position is a pair of cells: (player, box). Layouts are divided into training and test by a hash that is the same for
all their rotations, reflections and shifts. So no board of a test room, with the player and the box anywhere, occurs in
training in any orientation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import islice

from rollyard.resources_servers.grl_sokoban.game import (
    BOX,
    DOWN,
    LEFT,
    PLAYER,
    RIGHT,
    TARGET,
    UP,
    WALL,
    Room,
    canonical_board,
)
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate

SIZE = 6
"""Rows and columns of the rooms, including the surrounding walls."""
TEST_SHARE = 0.1
EVALUATION_SEED = 1_000_000_000
"""The first room seed of the evaluation. Seed ranges are disjoint, and so are the layouts of the two splits."""
VALIDATION_SEED = 2_000_000_000
TRAINING_SEED = 3_000_000_000
"""The first room seed of reinforcement learning."""
LEAST_MOVES = 3
"""Moves of the shortest solution."""
MOST_MOVES = 30
"""Moves of an episode."""
STEPS = {UP: -SIZE, DOWN: SIZE, LEFT: -1, RIGHT: 1}
"""Move -> difference of cell numbers."""

Position = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Walls and target, one code per cell, as in `Room.fixed`."""

    fixed: bytes

    @cached_property
    def distances(self) -> dict[Position, int]:
        """Moves to the solution for every position that can be solved; 0 for solved ones."""
        target = self.fixed.index(TARGET)
        layer = [(cell, target) for cell, code in enumerate(self.fixed) if code != WALL and cell != target]
        found = dict.fromkeys(layer, 0)
        while layer:
            following: list[Position] = []
            for position in layer:
                for before in self._before(position):
                    if before not in found:
                        found[before] = found[position] + 1
                        following.append(before)
            layer = following
        return found

    def after(self, position: Position, move: int) -> Position:
        """Return the position after a move, which is the same one if the move is blocked."""
        player, box = position
        step = STEPS[move]
        there = player + step
        if there != box:
            return position if self.fixed[there] == WALL else (there, box)
        return position if self.fixed[box + step] == WALL else (there, box + step)

    def best_moves(self, position: Position) -> list[int]:
        """Return all moves of shortest solutions."""
        nearer = self.distances[position] - 1
        return [move for move in STEPS if self.distances.get(self.after(position, move)) == nearer]

    def room(self, position: Position) -> Room:
        state = bytearray(self.fixed)
        state[position[1]], state[position[0]] = BOX, PLAYER
        return Room(SIZE, SIZE, self.fixed, bytes(state))

    def _before(self, position: Position) -> Iterator[Position]:
        """Yield the unsolved positions from which one move leads to this one."""
        player, box = position
        for step in STEPS.values():
            origin = player - step
            if self.fixed[origin] == WALL or origin == box:
                continue
            if self.fixed[box] != TARGET:
                yield origin, box
            if box == player + step and self.fixed[player] != TARGET:
                yield origin, player


def position_of(room: Room) -> Position:
    """Return the cells of the player and of the only box."""
    return room.state.index(PLAYER), room.state.index(BOX)


def puzzle_of_layout(fixed: bytes) -> str:
    """Return a string that is the same for all rotations, reflections and shifts of a layout."""
    symbols = fixed.translate(bytes.maketrans(bytes((WALL, 1, TARGET)), b"#_O")).decode()
    lines = [symbols[start : start + SIZE] for start in range(0, len(symbols), SIZE)]
    for _ in range(4):
        while len(lines) > 1 and set(lines[0] + lines[1]) == {"#"}:
            lines = lines[1:]
        lines = ["".join(column) for column in zip(*lines[::-1], strict=True)]
    return canonical_board("\n".join(lines))


def is_test_layout(fixed: bytes) -> bool:
    """Return whether rooms with this layout are held out."""
    digest = sha256(puzzle_of_layout(fixed).encode()).digest()
    return int.from_bytes(digest[:8], "big") < TEST_SHARE * 2**64


def rooms(first_seed: int, *, held_out: bool) -> Iterator[Room]:
    """Yield the held-out rooms, or the others, of all seeds from `first_seed` on."""
    known = dict[bytes, bool]()
    seed = first_seed
    while True:
        try:
            room = generate(RoomSpec(seed, (SIZE, SIZE), 1))
        except InfeasibleRoom:
            room = None
        if room is not None and room.tries == 1:
            if room.fixed not in known:
                known[room.fixed] = is_test_layout(room.fixed)
            if known[room.fixed] == held_out:
                yield room
        seed += 1


def distinct_rooms(count: int, first_seed: int, *, held_out: bool = True, least_moves: int = LEAST_MOVES) -> list[Room]:
    """Return rooms none of which is a rotation or reflection of another one."""
    seen: set[str] = set()

    def is_new(room: Room) -> bool:
        board = canonical_board(room.board())
        if board in seen or Layout(room.fixed).distances[position_of(room)] < least_moves:
            return False
        seen.add(board)
        return True

    return list(islice(filter(is_new, rooms(first_seed, held_out=held_out)), count))
