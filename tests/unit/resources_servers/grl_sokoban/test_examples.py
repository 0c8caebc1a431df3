"""The task rows and the script that writes them: seeds, level files, difficulties, splits, images, prompts."""

from __future__ import annotations

import re
import shlex
from itertools import islice
from pathlib import Path

import pytest
import yaml

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.grl_sokoban import generate_test_examples
from rollyard.resources_servers.grl_sokoban.game import canonical_board
from rollyard.resources_servers.grl_sokoban.generate_test_examples import (
    PromptBuilder,
    RowSelection,
    compat,
    labelled,
    puzzle_of_board,
    puzzles_of,
    seeded_rooms,
    split_of,
    write,
)
from rollyard.resources_servers.grl_sokoban.task import SokobanSettings, distinct, puzzle_of, read_task
from rollyard.services.server.settings import parse_settings
from tests.support.stacks import read_rows

from .reference import DATA, ROOT
from .reference import rooms as reference_rooms

FOLDER = ROOT / "resources_servers" / "grl_sokoban"
COMMITTED = FOLDER / "data" / "qwen3_4b_eval" / "test_examples_200.jsonl"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
BOXOBAN = DATA / "levels" / "boxoban_hard_20.txt"
EASY = "######\n#@$. #\n#  ###\n######"
TWO = "#######\n#.$   #\n#   $ #\n#  @ .#\n#######"
LOST = "#####\n#$  #\n# @.#\n#####"


def write_levels(path: Path, *levels: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"; {number}\n{level}\n\n" for number, level in enumerate(levels)))
    return path


def level_rows(tmp_path: Path, *arguments: str) -> list[Json]:
    out = tmp_path / "rows.jsonl"
    generate_test_examples.main([*arguments, "--output", str(out)])
    return read_rows(out)


def seeded(seed: int, count: int, selection: RowSelection | None = None) -> list[Json]:
    return list(islice(labelled(seeded_rooms(seed), selection), count))


def board_of(row: Json, settings: SokobanSettings | None = None) -> str:
    return puzzle_of(read_task(row), settings or SokobanSettings()).room.board()


def test_every_documented_command_works_verbatim(here: Path) -> None:
    (levels,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    (here / "levels").mkdir()
    (here / "levels" / "mine.xsb").write_text(levels)
    blocks = "".join(re.findall(r"```bash\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
    commands = [shlex.split(line) for line in blocks.splitlines()]
    assert len(commands) == 7
    for python, by_name, module, *arguments in commands:
        assert (python, by_name) == ("python", "-m")
        assert module == generate_test_examples.__name__
        generate_test_examples.main(arguments)
        rows = read_rows(here / arguments[arguments.index("--output") + 1])
        settings = SokobanSettings(levels_folder=here / "levels")
        assert rows and all(board_of(row, settings) for row in rows)


def test_all_settings_are_documented(here: Path) -> None:
    (here / "levels").mkdir()
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    raw = yaml.safe_load(text)["grl_sokoban_resources_server"]["resources_servers"]["grl_sokoban"]
    assert parse_settings(SokobanSettings, raw, "README").charge_unplayed
    documented = set(re.findall(r"^\| (`.*?`) \| .* \| .* \|$", README, re.MULTILINE))
    listed = {name for cell in documented for name in re.findall(r"`(\w+)`", cell)}
    declared = set(SokobanSettings.model_fields) - set(SokobanSettings.__base__.model_fields)  # type: ignore[union-attr]
    assert declared <= listed


def test_rows_by_board_and_by_file_have_the_same_rooms(tmp_path: Path) -> None:
    by_board = level_rows(tmp_path, "--input", str(BOXOBAN), "--most-states", "1000")
    by_file = level_rows(
        tmp_path, "--input", str(BOXOBAN), "--most-states", "1000", "--levels-folder", str(BOXOBAN.parent)
    )
    assert len(by_board) == len(by_file) == 20
    settings = SokobanSettings(levels_folder=BOXOBAN.parent, solver_states=1000)
    assert [board_of(row, settings) for row in by_file] == [row["level"] for row in by_board]
    assert "level" not in by_file[0]


def test_levels_are_skipped_by_size_boxes_difficulty_and_as_duplicates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = "#" * 14 + "\n#@$." + " " * 9 + "#\n" + "#" * 14
    mirrored = "\n".join(line[::-1] for line in EASY.split("\n"))
    path = write_levels(tmp_path / "five.xsb", EASY, mirrored, wide, TWO)
    assert [row["source"] for row in level_rows(tmp_path, "--input", str(path), "--difficulty", "easy")] == [
        "five.xsb, level 0"
    ]
    messages = capsys.readouterr().out
    for message in ("1: the same puzzle", "1: more than 10 rows or columns", "1: not difficulty easy"):
        assert f"skipped {message}" in messages
    (two,) = level_rows(tmp_path, "--input", str(path), "--min-boxes", "2")
    assert (two["source"], two["difficulty"]) == ("five.xsb, level 3", "medium")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{EASY}\n\n{EASY.replace('$', '?')}", r"levels.xsb, level 1 \(line 6\): .*\?"),
        (f"{EASY}\n\n{LOST}", r"levels.xsb, level 1 \(line 6\): .*cannot be pushed"),
        ("no level here", "contains no level"),
        (None, r"levels\.xsb .*No such file"),
    ],
)
def test_an_invalid_level_file_ends_the_script_with_its_location_and_no_file(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "levels.xsb"
    if text:
        path.write_text(text)
    with pytest.raises(OperatorError, match=message):
        level_rows(tmp_path, "--input", str(path))
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--min-moves", "5", "--max-moves", "4"],
        ["--test-share", "2"],
        ["--difficulty", "impossible"],
        ["--compat", "--split", "test"],
        ["--compat", "--undo"],
    ],
)
def test_contradictory_options_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(OperatorError, match=arguments[0]):
        generate_test_examples.main([*arguments, "--output", str(tmp_path / "rows.jsonl")])


def test_the_images_of_a_puzzle_have_the_same_label_and_different_boards() -> None:
    plain = seeded(3, 4)
    images = seeded(3, 1000, RowSelection(symmetries=True))
    for row in plain:
        own_images = [image for image in images if image["seed"] == row["seed"]]
        boards = [board_of(image) for image in own_images]
        assert len(set(boards)) == len(boards) in (4, 8)
        assert {canonical_board(board) for board in boards} == {canonical_board(board_of(row))}
        assert {image["optimal_moves"] for image in own_images} == {row["optimal_moves"]}
    assert [image["level_id"] for image in images] == list(range(1, 1001))


def test_irrelevant_walls_and_pockets_do_not_affect_the_split() -> None:
    board = "#####\n#PXO#\n#####"
    thick = "########\n########\n##PXO#_#\n########"
    assert puzzle_of_board(thick) == puzzle_of_board(board) == canonical_board(board)


def test_apart_from_excludes_a_files_puzzles_in_every_orientation(tmp_path: Path) -> None:
    held_out = tmp_path / "test.jsonl"
    stream = seeded(5, 60)
    write([{**row, "symmetry": "mirror_turn90"} for row in stream[::2]], held_out)
    out = tmp_path / "rows.jsonl"
    paths = ["--output", str(out), "--apart-from", str(held_out)]
    generate_test_examples.main(["--seed", "5", "--num-examples", "30", "--symmetries", *paths])
    rows = read_rows(out)
    assert len(rows) == 30
    assert not {puzzle_of_board(board_of(row)) for row in rows} & puzzles_of(held_out)
    assert {row["seed"] for row in rows} <= {row["seed"] for row in stream[1::2]}


@pytest.mark.parametrize("content", [None, '{"seed": "x"}\n', "{truncated"])
def test_an_apart_from_file_without_puzzles_is_rejected(tmp_path: Path, content: str | None) -> None:
    held_out = tmp_path / "test.jsonl"
    if content is not None:
        held_out.write_text(content)
    with pytest.raises(OperatorError, match="--apart-from: "):
        level_rows(tmp_path, "--input", str(BOXOBAN), "--apart-from", str(held_out))


def test_a_row_describes_the_servers_observations_and_its_strict_tools() -> None:
    for builder, phrases, tools in (
        (PromptBuilder(), ["grid of symbols"], ["step"]),
        (PromptBuilder(("coordinates", "image"), undo=True), ["(row, column)", "image", "`undo`"], ["step", "undo"]),
    ):
        params = builder.create_params()
        prompt, _ = params["input"]
        assert prompt["role"] == "developer" and all(phrase in prompt["content"] for phrase in phrases)
        assert ("grid of symbols" in prompt["content"]) == ("text" in builder.observations)
        assert [(tool["name"], tool["strict"]) for tool in params["tools"]] == [(name, True) for name in tools]
        schema = params["tools"][0]["parameters"]
        assert schema["required"] == list(schema["properties"]) == ["actions"] and not schema["additionalProperties"]


def test_all_images_are_on_one_side_of_the_split_and_a_larger_test_share_keeps_all_previous_test_rooms() -> None:
    found_rooms = [room for _, room, *_ in islice(seeded_rooms(9), 130)]
    for room in found_rooms[:40]:
        assert len({split_of(image, 0.5) for _, image in distinct(room)}) == 1
    shares = [{room.board() for room in found_rooms if split_of(room, share) == "test"} for share in (0, 0.1, 0.3, 1)]
    assert shares[0] < shares[1] < shares[2] < shares[3] == {room.board() for room in found_rooms}
    assert 0.2 < len(shares[2]) / len(shares[3]) < 0.4
    test, train = (seeded(5, 60, RowSelection(split=side, test_share=0.5)) for side in ("test", "train"))
    assert not {puzzle_of_board(board_of(row)) for row in test} & {puzzle_of_board(board_of(row)) for row in train}


def test_the_compat_stream_starts_with_the_public_tuples() -> None:
    keys = ("level_id", "seed", "dim_room", "num_boxes")
    expected_rows = [{key: row[key] for key in keys} for row in compat(42, 100)]
    assert expected_rows == [{key: row[key] for key in keys} for row in reference_rooms()]


def test_the_committed_rows_are_what_the_script_writes_and_the_examples_are_the_first_five(tmp_path: Path) -> None:
    rows = level_rows(tmp_path, "--num-examples", "200", "--seed", "42")
    assert (tmp_path / "rows.jsonl").read_bytes() == COMMITTED.read_bytes()
    assert read_rows(FOLDER / "data" / "example.jsonl") == rows[:5]
    assert len({tuple(row["dim_room"]) for row in rows[:5]}) == 5


def test_a_band_keeps_only_rooms_of_that_many_optimal_moves_and_an_empty_one_writes_no_file(tmp_path: Path) -> None:
    rows = level_rows(tmp_path, "--num-examples", "20", "--min-moves", "6", "--max-moves", "8", "--seed", "3")
    assert len(rows) == 20 and all(6 <= row["optimal_moves"] <= 8 for row in rows)
    none = tmp_path / "none"
    none.mkdir()
    with pytest.raises(OperatorError, match=r"(?s)0 of 1 .*90 to 95"):
        level_rows(none, "--num-examples", "1", "--min-moves", "90", "--max-moves", "95")
    assert not list(none.iterdir())
