"""Reward shaping: the potential, its bounds, and the shaping reward of an episode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.grl_sokoban.game import Game, Room
from rollyard.resources_servers.grl_sokoban.game_episode import GameEpisode
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.reward_shaping import Shaping, ShapingSettings
from rollyard.resources_servers.grl_sokoban.settings import SokobanSettings
from rollyard.resources_servers.grl_sokoban.solver import solve
from rollyard.services.server.settings import parse_settings

ROOMS = [generate(RoomSpec(seed, (6, 6), 2)) for seed in (5, 6, 7, 8)]
LOST = Room.parse("######\n#X___#\n#_P__#\n#__O_#\n######")


def phi(shaping: ShapingSettings, room: Room) -> float:
    return Shaping(shaping, 50_000, room).potential(room)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(ROOMS),
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
@given(st.sampled_from(ROOMS), st.lists(st.integers(1, 4), max_size=25))
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


def test_lost_and_undecided_positions_have_the_lowest_potential() -> None:
    shaping = ShapingSettings(scale=10, most_moves=40)
    assert phi(shaping, LOST) == -4.0
    assert Shaping(shaping, 1, ROOMS[0]).potential(ROOMS[0]) == -4.0


def test_a_detour_gains_nothing_from_shaping() -> None:
    solution = solve(ROOMS[0])
    assert solution is not None
    earned = []
    for detour in ((), (solution.path[0], 0), (1, 2, 3, 4)):
        play = GameEpisode(ROOMS[0], 100, SokobanSettings(undo=True, shaping={"scale": 5}))
        for action in detour:
            play.move(action) if action else play.undo()
        while play.undoable:
            play.undo()
        for action in solution.path:
            play.move(action)
        assert play.game.success
        earned.append(play.shaped)
    assert earned == pytest.approx([solution.moves / 5] * 3)


@pytest.mark.parametrize(
    ("shaping", "message"),
    [
        ({"gamma": 0.9}, "gamma 0.9 would reward standing still"),
        ({"gamma": 0.99, "scale": 1}, "use a gamma above 0.998"),
        ({"gamma": 0}, "greater than 0"),
        ({"gamma": 1.1}, "less than or equal to 1"),
        ({"scale": 0}, "greater than 0"),
        ({"most_moves": 0}, "greater than or equal to 1"),
        ({"sclae": 3}, "sclae"),
    ],
)
def test_invalid_shaping_is_refused_at_startup(shaping: object, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        parse_settings(SokobanSettings, {"shaping": shaping}, "grl_sokoban")
