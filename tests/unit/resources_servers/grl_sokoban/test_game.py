"""The board, the moves and the rewards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.resources_servers.grl_sokoban.game import Game, Room, canonical_board, parse_action

from .reference import rooms, trajectories


def test_all_160_recorded_trajectories_replay_exactly_also_beyond_done() -> None:
    assert len(trajectories()) == 160
    for recorded in trajectories():
        game = Game(Room.parse(recorded["initial_board"]), recorded["max_steps"])
        total_at_done = None
        for action, board, reward, done, effective, success, total in recorded["steps"]:
            assert game.step(action) == (reward, done, effective, success), recorded["level_id"]
            assert (game.board(), game.total_reward) == (board, total), recorded["level_id"]
            total_at_done = total if done and total_at_done is None else total_at_done
        assert (total if total_at_done is None else total_at_done) == recorded["app_total_reward"], recorded["level_id"]


def test_a_room_and_its_board_text_agree() -> None:
    for recorded in rooms():
        for kind in ("per_row", "default_6x6_1box"):
            if board := recorded[kind]["board"]:
                room = Room.parse(board)
                digits = recorded[kind]["room_fixed"], recorded[kind]["room_state"]
                assert (room.fixed, room.state) == tuple(bytes(map(int, "".join(rows))) for rows in digits)
                assert room.board() == board


@pytest.mark.parametrize("value", ["", "north", "5", "0", 0, 5, -1, True, "up up", "x" * 10_000, "²"])
def test_an_invalid_action_is_rejected_with_the_valid_ones(value: str | int) -> None:
    with pytest.raises(ValueError, match="Up, Down, Left or Right") as raised:
        parse_action(value)
    assert len(str(raised.value)) < 120


@pytest.mark.parametrize(
    ("board", "reason"),
    [
        ("#####\n#POX?\n#####", "unknown symbols"),
        ("#####\n#POX#\n####", "equal lengths"),
        ("#####\n#POX_\n#####", "surrounded by wall"),
        ("#####\n#_OX#\n#####", "0 players"),
        ("#####\n#POO#\n#####", "0 boxes, 2 targets"),
        ("", "surrounded by wall"),
    ],
)
def test_an_invalid_board_is_rejected_with_the_reason(board: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Room.parse(board)


grids = st.integers(1, 5).flatmap(
    lambda cols: st.lists(st.text("#_OX√PS", min_size=cols, max_size=cols), min_size=1, max_size=5)
)


@given(grids, st.integers(0, 3), st.booleans())
def test_rotations_and_mirror_images_of_a_board_are_the_same_puzzle(grid: list[str], turns: int, mirror: bool) -> None:
    turned = grid
    for _ in range(turns):
        turned = ["".join(column) for column in zip(*turned[::-1], strict=True)]
    if mirror:
        turned = [line[::-1] for line in turned]
    assert canonical_board("\n".join(turned)) == canonical_board("\n".join(grid))


@pytest.mark.parametrize("action", [0, 5, -1])
def test_an_unknown_action_is_refused_and_not_counted(action: int) -> None:
    game = Game(Room.parse("######\n#P_XO#\n######"))
    with pytest.raises(ValueError, match="unknown action"):
        game.step(action)
    assert game.steps == 0
