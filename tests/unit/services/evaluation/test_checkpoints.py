"""A checkpoint is taken when it is whole, and in a form that vLLM loads."""

from __future__ import annotations

import zipfile
from pathlib import Path

import orjson
import pytest

from rollyard.services.evaluation.checkpoint_sources import LocalSource
from rollyard.services.evaluation.checkpoints import find_missing_part, stage, step_of
from tests.unit.services.evaluation.checkpoint_files import checkpoint, safetensors


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_100", 100),
        ("checkpoint-2000", 2000),
        ("run2_step40", 40),
        ("global_step_7_hf", 7),
        ("qwen3-1.7b_300", 300),
        ("0100", 100),
        ("final", None),
        ("mixed_lr1e5_curriculum_final", None),
        ("Qwen3-1.7B-Base", None),
        ("Qwen3-4B", None),
    ],
)
def test_the_step_is_a_number_that_is_said_to_be_one_or_ends_the_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_whole_checkpoints_lack_nothing(tmp_path: Path) -> None:
    assert find_missing_part(checkpoint(tmp_path / "one")) == ""
    assert find_missing_part(checkpoint(tmp_path / "two", "a.safetensors", "b.safetensors", index=True)) == ""


@pytest.mark.parametrize("kept", [0, 5, 20, -1])
def test_weights_that_are_still_being_written_are_not_whole(tmp_path: Path, kept: int) -> None:
    folder = checkpoint(tmp_path / "one")
    (folder / "model.safetensors").write_bytes(safetensors()[:kept])
    assert "model.safetensors has" in find_missing_part(folder)


def test_a_shard_that_is_not_there_yet_is_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one", "a.safetensors", "b.safetensors", index=True)
    (folder / "b.safetensors").unlink()
    assert find_missing_part(folder) == "b.safetensors is missing"


def test_a_half_written_index_is_not_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one", "a.safetensors", "b.safetensors", index=True)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w0": "a.safe')
    assert find_missing_part(folder)


def test_without_config_or_weights_nothing_is_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one")
    (folder / "model.safetensors").unlink()
    assert find_missing_part(folder) == "the weights are missing"
    (folder / "config.json").unlink()
    assert find_missing_part(folder) == "config.json is missing"


def test_weights_under_another_name_than_the_indexs_are_staged_without_it(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one")
    index = {"weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_bytes(orjson.dumps(index))
    assert find_missing_part(folder) == ""
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


@pytest.mark.parametrize("name", ["tmp-checkpoint-9", ".step_9", "step_9.tmp", "step_9.partial", "step-9-incomplete"])
def test_a_name_that_will_be_changed_at_the_end_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    for folder in (name, "checkpoint-10", "checkpoint-9"):
        checkpoint(tmp_path / folder)
    assert LocalSource(tmp_path).names() == ["checkpoint-9", "checkpoint-10"]


def test_a_link_to_a_checkpoint_beside_it_is_not_another_one(tmp_path: Path) -> None:
    checkpoint(tmp_path / "elsewhere/step_2")
    checkpoint(tmp_path / "here/step_1")
    (tmp_path / "here/latest").symlink_to("step_1")
    (tmp_path / "here/step_2").symlink_to(tmp_path / "elsewhere/step_2")
    assert LocalSource(tmp_path / "here").names() == ["step_1", "step_2"]


def test_a_half_written_config_is_not_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one")
    (folder / "config.json").write_text('{"model_type": "qw')
    assert find_missing_part(folder) == "config.json is incomplete"


@pytest.mark.parametrize("index", [False, True])
def test_pickled_weights_are_whole_when_their_archive_is(tmp_path: Path, index: bool) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    name = "pytorch_model-00001-of-00001.bin" if index else "pytorch_model.bin"
    if index:
        (folder / "pytorch_model.bin.index.json").write_bytes(orjson.dumps({"weight_map": {"w": name}}))
    assert find_missing_part(folder) == (f"{name} is missing" if index else "the weights are missing")
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    assert find_missing_part(folder) == ""
    (folder / name).write_bytes((folder / name).read_bytes()[:900])
    assert find_missing_part(folder) == f"{name} is incomplete"
