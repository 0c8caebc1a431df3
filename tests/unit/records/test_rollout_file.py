"""read_rollouts: rows, tables and incomplete files."""

from __future__ import annotations

from pathlib import Path

import pytest

import rollyard
from rollyard.errors import OperatorError, RunError
from rollyard.records.rollout_file import RolloutPaths, named_files

LINES = b'{"reward":1,"success":true,"response":{"output":[]}}\n\n{"reward":0.5,"note":"x"}\n'


def test_an_incomplete_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES + b'{"reward":')
    rollouts = rollyard.read_rollouts(path)
    assert [row["reward"] for row in rollouts] == [1, 0.5]
    path.write_bytes(LINES + b'{"reward":2}\n')
    assert [row["reward"] for row in rollouts] == [1, 0.5, 2]


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES + b"[]\n" + LINES)
    with pytest.raises(RunError, match=r"line 4 .*list"):
        list(rollyard.read_rollouts(path))


def test_a_missing_file_is_a_run_error_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no\.jsonl .*exist"):
        rollyard.read_rollouts(tmp_path / "no.jsonl")


@pytest.mark.parametrize("table", ["to_pandas", "to_arrow"])
def test_one_name_instead_of_a_list_of_columns_is_refused(tmp_path: Path, table: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES)
    with pytest.raises(OperatorError, match=r"columns is 'reward'.*\['reward'\]"):
        getattr(rollyard.read_rollouts(path), table)("reward")


def test_a_data_frame_has_every_key_and_keeps_objects(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES)
    frame = rollyard.read_rollouts(path).to_pandas()
    assert list(frame.columns) == ["reward", "success", "response", "note"]
    assert frame["response"][0] == {"output": []}
    assert list(frame["note"].isna()) == [True, False]
    assert list(rollyard.read_rollouts(path).to_pandas(["reward"]).columns) == ["reward"]


def test_an_arrow_table_stores_objects_and_mixed_columns_as_json_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES + b'{"reward":0,"note":7}\n')
    table = rollyard.read_rollouts(path).to_arrow().to_pydict()
    assert table["reward"] == [1.0, 0.5, 0.0]
    assert table["response"] == ['{"output":[]}', None, None]
    assert table["note"] == [None, "x", "7"]


def test_a_folder_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is a folder"):
        rollyard.read_rollouts(tmp_path)


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_a_file_is_not_listed_twice_whatever_the_names(tmp_path: Path, names: list[str]) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINES)
    (tmp_path / "link.jsonl").symlink_to(path)
    for other in (path, tmp_path / "link.jsonl"):
        with pytest.raises(OperatorError, match="listed more than once"):
            named_files([path, other], names)


def test_files_that_differ_in_their_suffix_are_named_by_their_paths(tmp_path: Path) -> None:
    paths = [tmp_path / "x.json", tmp_path / "x.jsonl"]
    for path in paths:
        path.write_bytes(LINES)
    assert [name for name, _ in named_files(paths, [])] == [str(path) for path in paths]


def test_a_name_that_is_too_long_for_a_file_is_the_operators(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"x' cannot be a file: File name too long"):
        RolloutPaths(tmp_path / ("x" * 300))
