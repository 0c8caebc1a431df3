"""The eight images of a room."""

from random import Random

import pytest

from rollyard.resources_servers.grl_sokoban.game import Game, Room, canonical_board
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.solver import solve
from rollyard.resources_servers.grl_sokoban.symmetry import NAMES, Symmetry, SymmetryName, distinct

ROOM = generate(RoomSpec(84812, (5, 7), 2))


@pytest.mark.parametrize("name", NAMES)
def test_the_mapped_moves_lead_to_the_images_of_the_positions(name: SymmetryName) -> None:
    symmetry, moves = Symmetry.named(name), Random(3)
    game, image = Game(ROOM), Game(symmetry.room(ROOM))
    for _ in range(60):
        if game.done:
            break
        action = moves.randint(1, 4)
        assert game.step(action) == image.step(symmetry.action(action))
        assert symmetry.room(game.position()).board() == image.board()


@pytest.mark.parametrize("name", NAMES)
def test_the_mapped_optimum_solves_the_image(name: SymmetryName) -> None:
    symmetry, solution = Symmetry.named(name), solve(ROOM)
    assert solution is not None
    game = Game(symmetry.room(ROOM))
    assert [game.step(action).success for action in symmetry.solution(solution).path].index(True) == solution.moves - 1


def test_the_images_are_eight_different_boards_of_one_puzzle() -> None:
    boards = {room.board() for _, room in distinct(ROOM)}
    assert len(boards) == 8
    assert {canonical_board(board) for board in boards} == {canonical_board(ROOM.board())}


def test_turns_are_clockwise_and_mirrors_come_first() -> None:
    room = Room.parse("######\n#PXO_#\n#___##\n######")
    assert Symmetry.named("turn90").room(room).board() == "####\n#_P#\n#_X#\n#_O#\n##_#\n####"
    assert Symmetry.named("mirror").room(room).board() == "######\n#_OXP#\n##___#\n######"
    assert Symmetry.named("mirror_turn90").room(room).board() == "####\n##_#\n#_O#\n#_X#\n#_P#\n####"


def test_a_board_that_is_its_own_mirror_image_comes_once_for_both() -> None:
    assert [name for name, _ in distinct(Room.parse("#####\n#PXO#\n#####"))] == ["same", "turn90", "turn180", "turn270"]
