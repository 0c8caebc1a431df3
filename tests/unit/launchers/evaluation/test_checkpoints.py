"""A checkpoint is evaluated when it is complete, in a form that vLLM loads."""

from __future__ import annotations

import zipfile
from pathlib import Path

import orjson
import pytest

from rollyard.launchers.evaluation.checkpoints import LocalSource, find_missing_part, stage, step_of
from tests.unit.launchers.evaluation.checkpoint_files import checkpoint, safetensors

STEPS = """
    step_100 100, checkpoint-2000 2000, run2_step40 40, global_step_7_hf 7, qwen3-1.7b_300 300, 0100 100,
    final None, mixed_lr1e5_curriculum_final None, Qwen3-1.7B-Base None, Qwen3-4B None
"""


@pytest.mark.parametrize(("name", "step"), [entry.split() for entry in STEPS.split(",")])
def test_the_step_is_a_number_after_step_or_checkpoint_or_at_the_end_of_the_name(name: str, step: str) -> None:
    assert str(step_of(name)) == step


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
    index = folder / "model.safetensors.index.json"
    index.write_bytes(orjson.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    assert find_missing_part(folder) == ""
    staged = stage(folder, tmp_path / "staged")
    assert sorted(path.name for path in staged.iterdir()) == ["config.json", "model.safetensors"]
    assert (staged / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert index.is_file()
    loadable = checkpoint(tmp_path / "two", "a.safetensors", "b.safetensors", index=True)
    assert stage(loadable, tmp_path / "staged") == loadable


def test_temporary_names_and_links_to_a_checkpoint_in_the_same_folder_are_no_checkpoints(tmp_path: Path) -> None:
    temporary = ("tmp-checkpoint-9", ".step_9", "step_9.tmp", "step_9.partial", "step-9-incomplete")
    for folder in ("watched/step_10", "other/step_9", *(f"watched/{name}" for name in temporary)):
        checkpoint(tmp_path / folder)
    (tmp_path / "watched/latest").symlink_to("step_10")
    (tmp_path / "watched/step_9").symlink_to(tmp_path / "other/step_9")
    assert LocalSource(tmp_path / "watched").names() == ["step_9", "step_10"]


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
