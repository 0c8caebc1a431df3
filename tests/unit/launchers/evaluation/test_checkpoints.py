"""A checkpoint is evaluated when it is complete, in a form that vLLM loads."""

from __future__ import annotations

import zipfile
from pathlib import Path

import orjson
import pytest

from rollyard.launchers.evaluation.checkpoints import LocalSource, find_missing_part, stage, step_of
from tests.unit.launchers.evaluation.checkpoint_files import checkpoint, safetensors


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
def test_the_step_is_a_number_after_step_or_checkpoint_or_at_the_end_of_the_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


@pytest.mark.parametrize(
    ("file", "content", "missing"),
    [
        ("a.safetensors", safetensors(), ""),
        ("b.safetensors", None, "b.safetensors is missing"),
        *(("b.safetensors", safetensors()[:kept], "b.safetensors has") for kept in (0, 5, 20, -1)),
        ("model.safetensors.index.json", None, "the weights are missing"),
        ("model.safetensors.index.json", b'{"weight_map": {"w0": "a.safe', "index.json is missing"),
        ("config.json", None, "config.json is missing"),
        ("config.json", b'{"model_type": "qw', "config.json is incomplete"),
    ],
)
def test_what_a_checkpoint_lacks_is_named(tmp_path: Path, file: str, content: bytes | None, missing: str) -> None:
    folder = checkpoint(tmp_path / "one", "a.safetensors", "b.safetensors", index=True)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    found = find_missing_part(folder)
    assert missing in found and bool(missing) == bool(found)


def test_weights_that_the_index_does_not_name_are_staged_without_the_index(tmp_path: Path) -> None:
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


def test_a_checkpoint_that_vllm_can_load_is_used_in_place(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one", "a.safetensors", "b.safetensors", index=True)
    assert stage(folder, tmp_path / "staged") == folder


@pytest.mark.parametrize("name", ["tmp-checkpoint-9", ".step_9", "step_9.tmp", "step_9.partial", "step-9-incomplete"])
def test_a_temporary_name_is_not_a_checkpoint(tmp_path: Path, name: str) -> None:
    for folder in (name, "checkpoint-10", "checkpoint-9"):
        checkpoint(tmp_path / folder)
    assert LocalSource(tmp_path).names() == ["checkpoint-9", "checkpoint-10"]


def test_a_link_to_a_checkpoint_in_the_same_folder_is_ignored(tmp_path: Path) -> None:
    checkpoint(tmp_path / "other/step_2")
    checkpoint(tmp_path / "watched/step_1")
    (tmp_path / "watched/latest").symlink_to("step_1")
    (tmp_path / "watched/step_2").symlink_to(tmp_path / "other/step_2")
    assert LocalSource(tmp_path / "watched").names() == ["step_1", "step_2"]


@pytest.mark.parametrize("index", [False, True])
def test_pickled_weights_are_complete_when_their_archive_is(tmp_path: Path, index: bool) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    name = "pytorch_model-00001-of-00001.bin" if index else "pytorch_model.bin"
    if index:
        (folder / "pytorch_model.bin.index.json").write_bytes(orjson.dumps({"weight_map": {"w": name}}))
    assert (name if index else "weights") in find_missing_part(folder)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    assert find_missing_part(folder) == ""
    (folder / name).write_bytes((folder / name).read_bytes()[:900])
    assert find_missing_part(folder) == f"{name} is incomplete"
