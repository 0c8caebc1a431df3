"""Compares rooms with those built from gym-sokoban's parts as in the reference."""

import contextlib
import io
import random
import warnings
from typing import Any

import numpy as np
import pytest

from rollyard.resources_servers.grl_sokoban.game import Room
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec, generate

with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
    # gym logs a deprecation notice and was written for an older numpy.
    warnings.simplefilter("ignore")
    from gym_sokoban.envs.room_utils import place_boxes_and_player, reverse_move, room_topology_generation

Array = Any

SIZES = [(5, 5), (6, 5), (6, 6), (7, 7), (5, 8), (8, 8)]


def to_room(fixed: Array, state: Array) -> Room:
    codes = np.where(state == 3, 4, state)  # gym's 3 is a box on a target, which Room reads from `fixed`
    rows, cols = fixed.shape
    return Room(rows, cols, bytes(fixed.astype(np.uint8).ravel()), bytes(codes.astype(np.uint8).ravel()))


def reference_room(spec: RoomSpec) -> tuple[Array, Array] | None:
    """The generator as specified, slowly and plainly from gym's parts with one array per room."""
    random.seed(spec.seed)
    np.random.seed(spec.seed)
    for _ in range(4):
        room = room_topology_generation(spec.dim_room, num_steps=int(1.7 * sum(spec.dim_room)))
        try:
            room = place_boxes_and_player(room, spec.num_boxes, second_player=False)
        except RuntimeError:
            return None
        fixed = np.where(room == 5, 1, room)
        state, distance = reverse_search(np.where(room == 2, 4, room), fixed, spec.search_depth)
        if distance:
            return fixed, random_walk(np.where(state == 3, 4, state), fixed, distance)
    return None


def reverse_search(state: Array, fixed: Array, depth: int) -> tuple[Array, int]:
    targets = [tuple(map(int, cell)) for cell in np.argwhere(fixed == 2)]
    mapping = {target: target for target in targets}
    best, best_score, best_distance = state, -1, 0
    explored: set[bytes] = set()
    stack = [(state, mapping, 0, (-1, -1), depth)]
    while stack:
        state, mapping, swaps, last, remaining = stack.pop()
        remaining -= 1
        if remaining <= 0 or len(explored) >= 300_000 or state.tobytes() in explored:
            continue
        explored.add(state.tobytes())
        distance = sum(abs(t[0] - b[0]) + abs(t[1] - b[1]) for t, b in mapping.items())
        score = swaps * distance if (state == 2).sum() == len(targets) else 0
        if score > best_score:
            best, best_score, best_distance = state, score, distance
        for action in range(4):
            after, moved, pulled = reverse_move(state.copy(), fixed, mapping.copy(), last, action)
            stack.append((after, moved, swaps + (pulled != last), pulled, remaining))
    return best, int(best_distance)


def random_walk(state: Array, fixed: Array, distance: int) -> Array:
    if random.random() > (0.8 if distance == 1 else 0.5):
        return state
    player = tuple(np.argwhere(state == 5)[0])
    visited = {player}
    for steps in range(3):
        neighbours = [(player[0] + down, player[1] + right) for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1))]
        free = [cell for cell in neighbours if state[cell] in (1, 2) and cell not in visited]
        if not free:
            break
        state[player] = fixed[player]
        player = random.choice(free)
        visited.add(player)
        state[player] = 5
        if steps < 2 and random.random() > 0.5:
            break
    return state


@pytest.mark.parametrize("boxes", [1, 2, 3])
@pytest.mark.parametrize("depth", [12, 40, 100])
def test_generated_rooms_follow_the_specification(boxes: int, depth: int) -> None:
    draws = random.Random(1000 * boxes + depth)
    found = 0
    for _ in range(12):
        size = draws.choice([*SIZES, (9, 9), *([(4, 6), (5, 4)] if boxes < 3 else [])])
        spec = RoomSpec(draws.randrange(2**32), size, boxes, depth)
        expected = reference_room(spec)
        room = generate(spec)
        if expected is None:
            assert room.tries > 1
        else:
            found += 1
            assert (room.fixed, room.state) == (to_room(*expected).fixed, to_room(*expected).state), spec
            assert room.tries == 1
    assert found > 2
