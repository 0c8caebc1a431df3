"""The task rows and the script that writes them."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.resources_servers.grl_sokoban.game import canonical_board
from rollyard.resources_servers.grl_sokoban.generate_test_examples import compat, main, tuples
from rollyard.resources_servers.grl_sokoban.generator import RoomSpec, generate

from .reference import ROOT, rooms

FOLDER = ROOT / "resources_servers" / "grl_sokoban"
COMMITTED = FOLDER / "data" / "qwen3_4b_eval" / "test_examples_200.jsonl"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def spec_of(row: dict[str, Any]) -> RoomSpec:
    rows, cols = row["dim_room"]
    return RoomSpec(row["seed"], (rows, cols), row["num_boxes"])


def test_the_compat_stream_starts_with_the_public_tuples() -> None:
    keys = ("level_id", "seed", "dim_room", "num_boxes")
    expected_rows = [{key: row[key] for key in keys} for row in compat(42, 100)]
    assert expected_rows == [{key: row[key] for key in keys} for row in rooms()]


def test_the_public_500_tuples_have_the_known_numbers_of_boxes_and_impossible_rooms() -> None:
    specs = list(islice(tuples(42), 500))
    assert [sum(spec.num_boxes == boxes for spec in specs) for boxes in (1, 2, 3)] == [311, 124, 65]
    small = sum(spec.dim_room == (4, 4) for spec in specs)
    flat = sum(spec.dim_room in ((4, 6), (6, 4)) and spec.num_boxes == 3 for spec in specs)
    assert (small, flat, len({spec.seed for spec in specs})) == (33, 12, 499)


def test_the_committed_rows_are_what_the_script_writes(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    main(["--num-examples", "200", "--seed", "42", "--output", str(out)])
    assert out.read_bytes() == COMMITTED.read_bytes()


def test_the_example_rows_are_the_first_five_and_have_five_sizes() -> None:
    examples = read(FOLDER / "data" / "example.jsonl")
    assert examples == read(COMMITTED)[:5]
    assert len({tuple(row["dim_room"]) for row in examples}) == 5


def test_no_two_committed_rows_are_rotations_or_mirror_images_of_one_puzzle() -> None:
    boards = {canonical_board(generate(spec_of(row)).board()) for row in read(COMMITTED)}
    assert len(boards) == 200


def test_a_row_offers_one_strict_tool_that_takes_a_list_of_moves() -> None:
    for row in read(COMMITTED):
        request = row["responses_create_params"]
        assert set(request) == {"input", "tools"}
        assert [message["role"] for message in request["input"]] == ["developer", "user"]
        (tool,) = request["tools"]
        assert (tool["type"], tool["name"], tool["strict"]) == ("function", "step", True)
        schema = tool["parameters"]
        assert schema["required"] == list(schema["properties"]) == ["actions"]
        assert schema["additionalProperties"] is False
        assert schema["properties"]["actions"]["items"] == {"type": "string"}


def test_a_band_keeps_only_rooms_of_that_many_optimal_moves(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    main(["--num-examples", "20", "--min-moves", "6", "--max-moves", "8", "--seed", "3", "--output", str(out)])
    rows = read(out)
    assert len(rows) == 20
    assert all(6 <= row["optimal_moves"] <= 8 for row in rows)


def test_a_difficulty_without_rooms_ends_with_a_message_and_no_file(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    with pytest.raises(OperatorError, match=r"(?s)0 of 1 .*90 to 95"):
        main(["--num-examples", "1", "--min-moves", "90", "--max-moves", "95", "--output", str(out)])
    assert not out.exists()
