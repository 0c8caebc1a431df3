"""Level files: accepted notations, rejected levels and their messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.resources_servers.grl_sokoban.game import WALL
from rollyard.resources_servers.grl_sokoban.levels import InvalidLevel, levels_of, read_level
from rollyard.resources_servers.grl_sokoban.solver import solve

from .reference import DATA, rows

XSB = "####\n#@ ###\n# $ .#\n######"
BOARD = "######\n#P_###\n#_X_O#\n######"
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


def test_the_optima_of_published_levels_match_their_labels() -> None:
    labels = [row for row in rows("levels/labels.jsonl") if row["set"] == "microban_155"]
    for level, label in list(zip(levels_of(DATA / "levels" / "microban_155.xsb"), labels, strict=True))[:12]:
        solution = solve(level.room(), most_states=20_000)
        assert solution is None or (solution.moves, solution.pushes) == (
            label["optimal_moves"],
            label["optimal_pushes"],
        )


@pytest.mark.parametrize(
    "text",
    [
        XSB,
        BOARD,
        "\n" + XSB.replace("\n", "   \r\n") + "\r\n\n",
        XSB.replace(" ", "-"),
        XSB.replace(" ", "_"),
        XSB.translate(str.maketrans("@$.", "pbo")),
        "\n".join("    " + line for line in XSB.split("\n")),
    ],
)
def test_the_common_notations_give_the_same_level(text: str) -> None:
    assert read_level(text).board() == BOARD


@pytest.mark.parametrize(
    "text", ["6#\n#.2-#\n#-$-#\n#--@#\n6#", "6#|#.--#|#-$-#|#2-@#|6#", "6#\r#.  #\r# $ #\r#  @#\r6#"]
)
def test_runs_and_rows_may_be_run_length_encoded(text: str) -> None:
    assert read_level(text).board() == "######\n#O__##\n#_X_##\n#__P##\n######"


def test_a_box_or_player_on_a_target_is_read_in_every_notation() -> None:
    assert read_level("######\n#+$* #\n######").board() == "######\n#SX√_#\n######"
    assert read_level("######\n#PbB #\n######").board() == "######\n#SX√_#\n######"
    assert read_level("######\n#SX√_#\n######").board() == "######\n#SX√_#\n######"


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


def test_an_error_in_a_file_is_reported_with_file_level_and_line(tmp_path: Path) -> None:
    path = tmp_path / "slip.xsb"
    path.write_text(f"; 1\n{XSB}\n\n; 2\n#####\n#@,$.#\n#####\n")
    first, second = levels_of(path)
    assert first.room()
    with pytest.raises(InvalidLevel, match=r"^slip.xsb, level 1 \(line 8\): .* ,;"):
        second.room()


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "growing.xsb"
    path.write_text(XSB)
    assert len(levels_of(path)) == 1
    path.write_text(f"{XSB}\n\n{XSB}")
    assert len(levels_of(path)) == 2
