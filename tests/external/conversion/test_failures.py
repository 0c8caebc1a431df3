"""What cannot be converted: each failure names its reason, and nothing is published."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from transformers import PreTrainedTokenizerFast

from rollyard.launchers.conversion.cache import ConversionRequest, convert, is_converted
from rollyard.launchers.conversion.dcp_checkpoint import read_metadata
from rollyard.launchers.conversion.huggingface import HuggingFaceConverter
from rollyard.records.errors import RunError
from tests.external.conversion.conftest import Make
from tests.external.conversion.dcp_files import change_policy, reference

UNTIED = ("--world", "2", "--dtype", "bfloat16")
MODEL = "describes another model than the checkpoint's"


def layers(count: int) -> dict[str, object]:
    return {"num_hidden_layers": count, "layer_types": ["full_attention"] * count}


def fails(request: ConversionRequest, message: str) -> None:
    with warnings.catch_warnings(), pytest.raises(RunError, match=message):
        warnings.simplefilter("ignore")
        convert(request, HuggingFaceConverter(), report=lambda line: None)
    assert not is_converted(request)
    cache = Path(request.environ["LOG"]) / "nemo-rl" / "hf_eval_checkpoints"
    assert {path.suffix for path in cache.iterdir() if path.name != ".digests"} <= {".lock"}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("__1_0.distcp", lambda file: file.unlink(), r"__1_0.distcp is missing, although .metadata names it"),
        ("__1_0.distcp", lambda file: file.write_bytes(file.read_bytes()[:-500]), r"__1_0.distcp is truncated"),
        ("__1_0.distcp", flip, r"__1_0.distcp is damaged: a checksum of model\.\S+ is wrong"),
        (".metadata", lambda file: file.write_bytes(file.read_bytes()[:500]), r"\.metadata cannot be read"),
        (".metadata", lambda file: file.write_bytes(b""), r"\.metadata cannot be read"),
    ],
    ids=["missing", "truncated", "damaged", "truncated metadata", "empty metadata"],
)
def test_a_broken_file_is_named(checkpoint: Make, name: str, change: Callable[[Path], object], message: str) -> None:
    request = checkpoint(*UNTIED)
    change(Path(request.checkpoint) / name)
    fails(request, message)


def test_a_chunk_that_no_rank_saved_is_noticed(checkpoint: Make) -> None:
    request = checkpoint(*UNTIED)
    file = Path(request.checkpoint) / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    metadata.state_dict_metadata["model.model.norm.weight"].chunks.pop()
    file.write_bytes(pickle.dumps(metadata))
    fails(request, "model.norm.weight is incomplete: the files hold 32 of 64 values")


class Pickled:
    """Unpickled by a call, such as a member of an enum as Python 3.11.0 to 3.11.3 stores it."""

    def __init__(self, *reduced: object) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


def test_metadata_of_another_minor_python_version_is_read(tmp_path: Path) -> None:
    member = Pickled(getattr, (_MEM_FORMAT_ENCODING, "TORCH_PRESERVE_FORMAT"))
    metadata = Metadata(state_dict_metadata={}, planner_data=member, storage_data={})
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert read_metadata(tmp_path / ".metadata").planner_data is _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT


def test_metadata_runs_no_code_and_gets_no_other_attributes(tmp_path: Path) -> None:
    attacked = tmp_path / "attacked"
    attributes = [(getattr, (_MEM_FORMAT_ENCODING, name), name) for name in ("__init__", "mro", "_missing_")]
    for call, given, named in [*attributes, (Path.touch, (attacked,), "not part of a checkpoint's metadata")]:
        (tmp_path / ".metadata").write_bytes(pickle.dumps(Pickled(call, given)))
        with pytest.raises(RunError, match=named):
            read_metadata(tmp_path / ".metadata")
    assert not attacked.exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"hidden_size": 32}, MODEL),
        (layers(3), rf"model\.layers\.2\.\S+ .* are missing in the checkpoint: .* {MODEL}"),
        (layers(1), rf"model\.layers\.1\.\S+ .* are not part of the model: .* {MODEL}"),
        ({"vocab_size": 1000}, "token ids up to 1,023, but the model only has 1,000 embeddings"),
        ({"tie_word_embeddings": True}, r"ties lm_head.weight to model.embed_tokens.weight, but .* different values"),
    ],
    ids=["hidden size", "more layers", "fewer layers", "vocabulary", "tied"],
)
def test_a_config_of_another_model_is_noticed(checkpoint: Make, overrides: dict[str, object], message: str) -> None:
    request = checkpoint(*UNTIED)
    change_policy(request, hf_overrides=overrides)
    fails(request, message)


def test_an_absent_model_or_an_unreadable_tokenizer_is_named(checkpoint: Make) -> None:
    request = checkpoint(*UNTIED)
    (Path(request.checkpoint).parent / "tokenizer/tokenizer.json").write_text('{"version"')
    fails(request, r"loading the tokenizer .*/tokenizer failed")
    change_policy(request, model_name="./no such model")
    fails(request, r"loading the model config \./no such model failed: .*Check policy.model_name")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(checkpoint: Make) -> None:
    request = checkpoint(*UNTIED)
    folder = Path(request.checkpoint).parent / "tokenizer"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save_pretrained(folder)
    fails(request, "the tokenizer has token ids up to 1,024, but the model only has 1,024 embeddings")


@pytest.mark.parametrize(
    ("diverged", "message"),
    [
        (False, "holds no tensors of a model, only: model.optim.lr"),
        (True, "logits are not finite numbers: the training"),
    ],
)
def test_a_checkpoint_without_a_model_or_of_a_diverged_one_is_refused(
    checkpoint: Make, diverged: bool, message: str
) -> None:
    request = checkpoint(*UNTIED)
    state: dict[str, Any] = {"optim": {"lr": 1e-6}}
    if diverged:
        state = reference(Path(request.checkpoint).parents[2], 0).state_dict()
        state["model.norm.weight"].fill_(torch.nan)
    shutil.rmtree(request.checkpoint)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"model": state}, checkpoint_id=request.checkpoint, no_dist=True)
    fails(request, message)


FULL_DISK = """
import os, subprocess, sys
folder, size, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
status = subprocess.run(command, env={**os.environ, "LOG": folder}).returncode
names = os.listdir(folder + "/nemo-rl/hf_eval_checkpoints")
print("left:", [name for name in names if "lock" not in name and name[0] != "."])
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("room", "message"),
    [
        pytest.param(300_000, "the conversion failed: No space left on device", id="weights"),
        pytest.param(-40_960, "bytes left; the conversion needs about", id="before the start"),
    ],
)
def test_a_full_disk_is_named(checkpoint: Make, tmp_path: Path, room: int, message: str) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    request = checkpoint(*UNTIED)
    with (Path(request.checkpoint).parent / "tokenizer" / "chat_template.jinja").open("a") as file:
        file.write("{# " + "x" * 600_000 + " #}")  # the tokenizer leaves too little for the weights
    size = request.read()[0].size + room
    (tmp_path / "disk").mkdir()
    command = [sys.executable, "-m", "rollyard.launchers.conversion"]
    files = ["--dcp-ckpt-path", str(request.checkpoint), "--dcp-config", str(request.config)]
    mounted = ["unshare", "-m", sys.executable, "-c", FULL_DISK, str(tmp_path / "disk"), str(size)]
    done = subprocess.run([*mounted, *command, *files], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert "left: []" in done.stdout
