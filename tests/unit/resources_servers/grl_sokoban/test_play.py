"""An episode with the settings applied: undo, the deadlock flag, and the reward of an idle episode."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from rollyard.resources_servers.grl_sokoban.game import Room
from rollyard.resources_servers.grl_sokoban.game_episode import GameEpisode
from rollyard.resources_servers.grl_sokoban.settings import SokobanSettings
from rollyard.resources_servers.grl_sokoban.solver import is_deadlocked

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
def test_giving_up_gets_no_more_than_bumping_into_walls_until_the_end(board: str) -> None:
    settings = SokobanSettings(charge_unplayed=True)
    for actions in product(range(1, 5), repeat=2):
        stopped = play_actions(board, actions, 5, settings)
        if stopped is not None and not stopped.over:
            continued = max(
                play.reward()
                for last in product(range(1, 5), repeat=3)
                if (play := play_actions(board, (*actions, *last), 5, settings)) is not None
            )
            assert stopped.reward() <= continued + 1e-9


def test_without_charge_unplayed_the_reward_is_what_the_steps_earned() -> None:
    play = new_episode(ROOMS["easily lost"])
    assert play.reward() == 0.0
    assert play.move(3) == play.reward() == -0.1


def test_undo_restores_the_position_and_costs_a_step() -> None:
    play = new_episode("######\n#P√__#\n#_XO_#\n######", undo=True)
    before = play.game.position()
    assert play.move(4) == pytest.approx(-1.1)
    assert play.undo() == pytest.approx(0.9)
    assert play.game.position() == before
    assert (play.game.steps, play.game.boxes_on_target, play.undoable) == (2, 1, 0)
    assert play.total_reward == pytest.approx(-0.2)


def test_blocked_moves_cannot_be_undone() -> None:
    play = new_episode(ROOMS["easily lost"], undo=True)
    for action in (3, 3, 3):
        play.move(action)
    assert play.undoable == 1
    play.undo()
    assert play.game.board() == ROOMS["easily lost"]


@pytest.mark.parametrize("board", ROOMS.values(), ids=ROOMS)
def test_the_reward_for_boxes_depends_only_on_their_final_cells(board: str) -> None:
    at_start = new_episode(board).game.boxes_on_target
    for play in all_episodes(board, 4, SokobanSettings(undo=True)):
        game = play.game
        earned = game.boxes_on_target - at_start + 10 * game.success - 0.1 * game.steps
        assert play.total_reward == pytest.approx(earned)


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


def test_a_lost_room_ends_the_episode_only_if_configured() -> None:
    for deadlock, over in (("flag", False), ("end", True)):
        play = new_episode(ROOMS["easily lost"], deadlock=deadlock)
        play.move(1)
        assert (play.lost, play.over) == (False, False)
        for action in (3, 1, 4):
            play.move(action)
        assert (play.lost, play.over, play.game.done) == (True, over, False)


def test_an_undo_can_recover_a_lost_room() -> None:
    play = new_episode(ROOMS["easily lost"], deadlock="flag", undo=True)
    for action in (3, 1, 4):
        play.move(action)
    assert play.lost is True
    play.undo()
    assert play.lost is False
