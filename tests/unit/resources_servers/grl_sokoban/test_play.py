"""An episode with the settings applied: undo, the deadlock flag, shaping, and the reward of an idle episode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.resources_servers.grl_sokoban.app import GameEpisode, Shaping
from rollyard.resources_servers.grl_sokoban.game import Game, Room
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.solver import is_deadlocked, solve
from rollyard.resources_servers.grl_sokoban.task import ShapingSettings, SokobanSettings

UNDO = 0
ROOMS = {
    "one push": "#####\n#PXO#\n#####",
    "easily lost": "#####\n#O__#\n#_X_#\n#_P_#\n#####",
    "one box on target": "######\n#P√__#\n#_XO_#\n######",
}
FEATURES: list[dict[str, Any]] = [
    {},
    {"undo": True},
    {"deadlock": "end"},
    {"shaping": {}},
    {"undo": True, "deadlock": "end", "shaping": {"gamma": 0.99, "most_moves": 30, "scale": 3.5}},
    {"undo": True, "deadlock": "flag", "solver_states": 3, "shaping": {"scale": 1}},
]


def new_episode(board: str, max_steps: int = 100, **settings: Any) -> GameEpisode:
    return GameEpisode(Room.parse(board), max_steps, SokobanSettings(**settings))


def play_actions(board: str, actions: tuple[int, ...], max_steps: int, settings: SokobanSettings) -> GameEpisode | None:
    """The episode after these actions; None if they continue after the end or undo a move that does not exist."""
    play = GameEpisode(Room.parse(board), max_steps, settings)
    for action in actions:
        if play.over or (action == UNDO and not play.undoable):
            return None
        if action == UNDO:
            play.undo()
        else:
            play.move(action)
    return play


def all_episodes(board: str, max_steps: int, settings: SokobanSettings) -> Iterator[GameEpisode]:
    """All episodes with at least one move, ended after any of them."""
    actions = range(0 if settings.undo else 1, 5)
    for length in range(1, max_steps + 1):
        for actions_taken in product(actions, repeat=length):
            if (play := play_actions(board, actions_taken, max_steps, settings)) is not None:
                yield play


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("board", ROOMS.values(), ids=ROOMS)
def test_doing_nothing_gets_less_than_any_attempt(board: str, features: dict[str, Any]) -> None:
    settings = SokobanSettings(charge_unplayed=True, **features)
    worst = min(play.reward() for play in all_episodes(board, 4, settings))
    assert GameEpisode(Room.parse(board), 4, settings).reward() < worst


@pytest.mark.parametrize("board", ROOMS.values(), ids=ROOMS)
def test_the_deadlock_flag_is_exact_after_every_step_and_undo(board: str) -> None:
    for play in all_episodes(board, 4, SokobanSettings(undo=True, deadlock="flag")):
        assert play.lost is (False if play.game.success else is_deadlocked(play.game.position()))


def test_beyond_the_solvers_limit_the_flag_is_unknown_and_the_episode_continues() -> None:
    room = "########\n#P_____#\n#_X_X__#\n#___O_O#\n#______#\n########"
    play = new_episode(room, deadlock="end", solver_states=1)
    assert play.lost is None
    play.move(4)
    assert (play.lost, play.over) == (None, False)


SHAPED_ROOMS = [generate(RoomSpec(seed, (6, 6), 2)) for seed in (5, 6, 7, 8)]
LOST = Room.parse("######\n#X___#\n#_P__#\n#__O_#\n######")


def phi(shaping: ShapingSettings, room: Room) -> float:
    return Shaping(shaping, 50_000, room).potential(room)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(SHAPED_ROOMS),
    st.sampled_from([ShapingSettings(), ShapingSettings(gamma=0.99, scale=7.5), ShapingSettings(most_moves=3)]),
    st.lists(st.integers(0, 4), max_size=25),
)
def test_the_discounted_sum_telescopes_for_any_moves_and_undos(
    start: Room, shaping: ShapingSettings, actions: list[int]
) -> None:
    play = GameEpisode(start, 100, SokobanSettings(undo=True, shaping=shaping))
    discounted, discount = 0.0, 1.0
    for action in actions:
        if play.over or (action == 0 and not play.undoable):
            continue
        plain, shaped = play.game.total_reward, play.shaped
        reward = play.move(action) if action else play.undo()
        assert play.shaped is not None and shaped is not None
        assert reward == pytest.approx(play.game.total_reward - plain + play.shaped - shaped)
        discounted += discount * (play.shaped - shaped)
        discount *= shaping.gamma
    assert discounted == pytest.approx(discount * phi(shaping, play.game.position()) - phi(shaping, start))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(SHAPED_ROOMS), st.lists(st.integers(1, 4), max_size=25))
def test_the_potential_is_the_optimal_distance_within_its_bounds(start: Room, actions: list[int]) -> None:
    game, shaping = Game(start), ShapingSettings(scale=4, most_moves=8)
    for action in actions:
        if not game.done:
            game.step(action)
    potential = phi(shaping, game.position())
    assert -shaping.bound <= potential <= 0
    try:
        solution = solve(game.position())
    except ValueError:
        assert potential == -shaping.bound
    else:
        assert solution is not None
        assert potential == -min(solution.moves, 8) / 4


@pytest.mark.parametrize("board", ROOMS.values(), ids=ROOMS)
def test_the_reward_for_boxes_depends_only_on_their_final_cells(board: str) -> None:
    at_start = new_episode(board).game.boxes_on_target
    for play in all_episodes(board, 4, SokobanSettings(undo=True)):
        game = play.game
        earned = game.boxes_on_target - at_start + 10 * game.success - 0.1 * game.steps
        assert play.total_reward == pytest.approx(earned)
