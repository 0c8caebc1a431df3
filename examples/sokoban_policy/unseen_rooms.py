"""The rooms of the evaluation, of the validation during training, and of reinforcement learning."""

from __future__ import annotations

from itertools import islice

from examples.sokoban_policy.layouts import Layout, position_of, rooms
from rollyard.resources_servers.grl_sokoban.game import Room, canonical_board

EVALUATION_SEED = 1_000_000_000
"""The first room seed of the evaluation. Seed ranges are disjoint, and so are the layouts of the two splits."""
VALIDATION_SEED = 2_000_000_000
TRAINING_SEED = 3_000_000_000
"""The first room seed of reinforcement learning."""
LEAST_MOVES = 3
"""Moves of the shortest solution."""
MOST_MOVES = 30
"""Moves of an episode."""


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
