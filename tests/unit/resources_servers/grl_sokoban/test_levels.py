"""Level files: accepted notations, rejected levels and their messages."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from rollyard.resources_servers.grl_sokoban.game import WALL, Game, Room
from rollyard.resources_servers.grl_sokoban.generate_test_examples import tuples
from rollyard.resources_servers.grl_sokoban.generator import InfeasibleRoom, RoomSpec, generate
from rollyard.resources_servers.grl_sokoban.levels import InvalidLevel, levels_of, read_level
from rollyard.resources_servers.grl_sokoban.solver import solve
from rollyard.resources_servers.grl_sokoban.task import NAMES, Symmetry, SymmetryName
from tests.unit.resources_servers.grl_sokoban.reference import DATA, rows

XSB = "####\n#@ ###\n# $ .#\n######"
BOARD = "######\n#P_###\n#_X_O#\n######"
ENCODED = "######\n#O__##\n#_X_##\n#__P##\n######"
FILES = ["boxoban_unfiltered_test_100.txt", "boxoban_medium_train_100.txt", "boxoban_hard_20.txt", "microban_155.xsb"]


@pytest.mark.parametrize("name", FILES)
def test_every_published_level_is_read(name: str) -> None:
    labels = [row for row in rows("levels/labels.jsonl") if row["set"] == name.split(".")[0]]
    levels = levels_of(DATA / "levels" / name)
    assert [level.index for level in levels] == list(range(len(labels)))
    for level, label in zip(levels, labels, strict=True):
        room = level.room()
        floor = sum(code != WALL for code in room.fixed)
        assert (room.rows, floor) == (label["height"], label["floor"])
        assert room.board().count("X") == level.text.count("$")


@pytest.mark.parametrize(
    ("text", "board"),
    [
        *((text, BOARD) for text in (XSB, BOARD, XSB.replace(" ", "-"), XSB.replace(" ", "_"))),
        ("\n" + XSB.replace("\n", "   \r\n") + "\r\n\n", BOARD),
        (XSB.translate(str.maketrans("@$.", "pbo")), BOARD),
        ("\n".join("    " + line for line in XSB.split("\n")), BOARD),
        *((text, ENCODED) for text in ("6#\n#.2-#\n#-$-#\n#--@#\n6#", "6#|#.--#|#-$-#|#2-@#|6#")),
        ("6#\r#.  #\r# $ #\r#  @#\r6#", ENCODED),
        *((f"######\n#{row}#\n######", "######\n#SX√_#\n######") for row in ("+$* ", "PbB ", "SX√_")),
    ],
)
def test_the_common_notations_and_run_lengths_give_the_same_level(text: str, board: str) -> None:
    assert read_level(text).board() == board


def test_cells_that_the_player_cannot_reach_become_walls() -> None:
    assert read_level("########\n#@$. # #\n### *###\n  ####").board().split("\n")[1] == "#PXO_###"
    assert read_level("#######\n#@$.#*#\n#######").board() == "#######\n#PXO###\n#######"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#####\n#@$x#\n#####", "unknown symbols x"),
        ("2(#-)|#@$.#", "no brackets"),
        ("9999999999#|#@$.#", "unknown symbols 9"),
        ("#####\n#@\t$.#\n#####", r"unknown symbols '\\t'"),
        ("#####\n#@\u00a0$.#\n#####", r"unknown symbols '\\xa0'"),
        ("#####\n#@$.\n#####", "hole: the player could leave at row 1, column 4"),
        ("#####\n# $.#\n#####", "one player; found 0"),
        ("######\n#@@$.#\n######", "one player; found 2"),
        ("######\n#@$$.#\n######", "1 players, 2 boxes, 1 targets"),
        ("######\n#@#$.#\n######", "the box in row 1, column 3"),
        ("#####\n#@ *#\n#####", "nothing to solve"),
        ("", "one player; found 0"),
    ],
)
def test_an_invalid_level_is_rejected_with_the_error(text: str, message: str) -> None:
    with pytest.raises(InvalidLevel, match=message):
        read_level(text)


def test_titles_and_comments_may_be_between_levels(tmp_path: Path) -> None:
    path = tmp_path / "mixed.xsb"
    header = "; by an author\nTitle: Box # 3\n'second'\n\n"
    path.write_bytes(f"{header}{XSB}\n; 2\r\n{XSB}\n\n  \n{header}{XSB}\nAuthor: caf".encode() + b"\xe9\n")
    levels = levels_of(path)
    assert [(level.index, level.line) for level in levels] == [(0, 5), (1, 10), (2, 20)]
    assert {level.room().board() for level in levels} == {BOARD}


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


def test_turns_are_clockwise_and_mirrors_come_first() -> None:
    room = Room.parse("######\n#PXO_#\n#___##\n######")
    assert Symmetry.named("turn90").room(room).board() == "####\n#_P#\n#_X#\n#_O#\n##_#\n####"
    assert Symmetry.named("mirror").room(room).board() == "######\n#_OXP#\n##___#\n######"
    assert Symmetry.named("mirror_turn90").room(room).board() == "####\n##_#\n#_O#\n#_X#\n#_P#\n####"


# Recorded from the reference: rows where it falls back to a salted seed, and rows where it crashes.
FALLING_BACK = """
    36 37 64 70 80 89 132 136 144 148 162 194 200 210 228 230 249 259 261 267 271 274 287 305 316 318 329 335 340 348
    355 364 373 397 401 408 418 429 439 460 463 499"""
CRASHING = """
    33 46 52 58 95 102 133 137 139 147 151 154 165 214 233 241 251 260 264 282 283 286 290 296 304 306 336 337 341 343
    360 363 374 379 398 417 422 426 434 447 450 458 471 483 498"""


def test_the_public_500_rows_fall_back_and_are_refused_where_the_reference_is_and_have_the_recorded_optima() -> None:
    moves = Counter[int]()
    refused, other_seed = [], []
    for number, spec in enumerate(islice(tuples(42), 500), 1):
        try:
            room = generate(spec)
        except InfeasibleRoom:
            refused.append(number)
            continue
        if room.tries > 1:
            other_seed.append(number)
        else:
            solution = solve(room)
            assert solution is not None
            moves[solution.moves] += 1
    assert refused == [int(word) for word in CRASHING.split()]
    assert other_seed == [int(word) for word in FALLING_BACK.split()]
    assert [moves[number] for number in range(1, 11)] == [36, 79, 50, 63, 43, 33, 24, 16, 16, 11]
    assert max(moves) == 37


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "growing.xsb"
    path.write_text(XSB)
    assert len(levels_of(path)) == 1
    path.write_text(f"{XSB}\n\n{XSB}")
    assert len(levels_of(path)) == 2
