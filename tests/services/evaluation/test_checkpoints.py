"""A checkpoint is taken when it is whole, and in a form that vLLM loads."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from services.evaluation.checkpoints import stage, step_of, what_is_missing
from tests.services.evaluation.checkpoint_files import checkpoint, safetensors


@pytest.mark.parametrize(
    ("name", "step"), [("step_100", 100), ("checkpoint-2000", 2000), ("run2_step40", 40), ("final", None)]
)
def test_the_step_is_the_last_number_of_the_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_whole_checkpoints_lack_nothing(tmp_path: Path) -> None:
    assert what_is_missing(checkpoint(tmp_path / "one")) == ""
    assert what_is_missing(checkpoint(tmp_path / "two", "a.safetensors", "b.safetensors", index=True)) == ""


@pytest.mark.parametrize("kept", [0, 5, 20, -1])
def test_weights_that_are_still_being_written_are_not_whole(tmp_path: Path, kept: int) -> None:
    folder = checkpoint(tmp_path / "one")
    (folder / "model.safetensors").write_bytes(safetensors()[:kept])
    assert "model.safetensors has" in what_is_missing(folder)


def test_a_shard_that_is_not_there_yet_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one", "a.safetensors", "b.safetensors", index=True)
    (folder / "b.safetensors").unlink()
    assert what_is_missing(folder) == "b.safetensors is not there"


def test_a_half_written_index_is_not_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one", "a.safetensors", "b.safetensors", index=True)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w0": "a.safe')
    assert what_is_missing(folder)


def test_without_config_or_weights_nothing_is_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one")
    (folder / "model.safetensors").unlink()
    assert what_is_missing(folder) == "no weights are there"
    (folder / "config.json").unlink()
    assert what_is_missing(folder) == "config.json is not there"


def test_weights_under_another_name_than_the_indexs_are_staged_without_it(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one")
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_bytes(orjson.dumps(index))
    assert what_is_missing(folder) == ""
    staged = stage(folder, tmp_path / "staged")
    assert sorted(path.name for path in staged.iterdir()) == ["config.json", "model.safetensors"]
    assert (staged / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ]


def test_a_checkpoint_that_vllm_can_load_is_used_where_it_is(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one", "a.safetensors", "b.safetensors", index=True)
    assert stage(folder, tmp_path / "staged") == folder
