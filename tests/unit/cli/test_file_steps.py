from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.cli.file_steps import file_steps
from rollyard.records.errors import OperatorError


def test_steps_are_read_from_the_names_of_files_or_of_their_folders() -> None:
    assert file_steps([Path("step_0.jsonl"), Path("step_25.jsonl")], []) == [0, 25]
    assert file_steps([Path("a/checkpoint-10/rollouts.jsonl"), Path("a/checkpoint-5/rollouts.jsonl")], []) == [10, 5]


def test_steps_are_read_from_the_model_in_the_manifest(tmp_path: Path) -> None:
    paths = []
    for name, step in (("one", 3), ("two", 8)):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "rollouts.jsonl")
        identity = {"responses_create_params": {"model": f"runs/a/step_{step}"}}
        (tmp_path / name / "rollouts_manifest.json").write_bytes(orjson.dumps({"identity": identity}))
    assert file_steps(paths, []) == [3, 8]


@pytest.mark.parametrize(
    "names", [["base.jsonl", "trained.jsonl"], ["step_1.jsonl", "b/step_1.jsonl"], ["step_1.jsonl"]]
)
def test_files_without_different_steps_are_no_series(names: list[str]) -> None:
    assert file_steps([Path("/nowhere") / name for name in names], []) is None


@pytest.mark.parametrize("given", [[1], [1, 1]])
def test_given_steps_must_fit_the_files(given: list[int]) -> None:
    with pytest.raises(OperatorError, match=r"^steps (has|is) "):
        file_steps([Path("a.jsonl"), Path("b.jsonl")], given)
