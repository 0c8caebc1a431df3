"""What the conversion writes: the checkpoint's model, whatever wrote the shards."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollyard.launchers.conversion.cache import ConversionManifest, ConversionRequest, convert, read_manifest
from rollyard.launchers.conversion.huggingface import HuggingFaceConverter
from tests.external.conversion.conftest import Make
from tests.external.conversion.dcp_files import change_policy, reference

PROMPT = torch.arange(3, 43).reshape(2, 20)
LAYOUTS = [
    pytest.param(["--world", "2", "--dtype", "bfloat16"], id="Qwen3, untied, bf16, 2 ranks", marks=pytest.mark.smoke),
    pytest.param(["--world", "4", "--tied"], id="Qwen3, tied, fp32, 4 ranks"),
    pytest.param(
        ["--world", "2", "--tied", "--dtype", "bfloat16", "--family", "llama"], id="Llama, tied, bf16, 2 ranks"
    ),
    pytest.param(["--world", "1", "--flat", "--no-tokenizer"], id="Qwen3, 1 rank, not below 'model'"),
]


def run(request: ConversionRequest, max_shard_bytes: int = 10**9) -> tuple[Path, ConversionManifest, list[str]]:
    lines: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and transformers
        path = convert(request, HuggingFaceConverter(max_shard_bytes), report=lines.append)
    manifest = read_manifest(path)
    assert manifest
    return path, manifest, lines


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model.eval()(PROMPT).logits
    return found


def original(request: ConversionRequest, options: list[str]) -> Any:
    return reference(Path(request.checkpoint).parents[2], 0, tied="--tied" in options)


@pytest.mark.parametrize("options", LAYOUTS)
def test_the_converted_model_is_the_trained_one(checkpoint: Make, options: list[str]) -> None:
    request = checkpoint(*options)
    path, manifest, lines = run(request)
    trained = original(request, options)
    converted = AutoModelForCausalLM.from_pretrained(path)
    assert converted.dtype == trained.dtype
    assert type(converted) is type(trained)
    assert torch.equal(logits(converted), logits(trained))
    expected, stored = dict(trained.state_dict()), load_file(path / "model.safetensors")
    if "--tied" in options:
        del expected["lm_head.weight"]
    assert stored.keys() == expected.keys()
    assert all(
        torch.equal(stored[name], tensor) and stored[name].dtype == tensor.dtype for name, tensor in expected.items()
    )
    tied = {"lm_head.weight": "model.embed_tokens.weight"} if "--tied" in options else {}
    assert (manifest.contents.tied, manifest.contents.largest_logit_difference) == (tied, 0)
    assert manifest.contents.tensors == len(expected)
    if "bfloat16" not in options:
        assert any("float32 (policy.precision is bfloat16)" in line for line in lines)


def test_the_result_is_complete_for_an_engine(checkpoint: Make) -> None:
    request = checkpoint("--world", "2", "--dtype", "bfloat16")
    path, manifest, _ = run(request)
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {*names, "chat_template.jinja"} == manifest.files.keys()
    assert len({(path / name).stat().st_mode for name in names}) == 1
    config = json.loads((path / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["Qwen3ForCausalLM"], "bfloat16")
    before, after = (
        AutoTokenizer.from_pretrained(folder) for folder in (Path(request.checkpoint).parent / "tokenizer", path)
    )
    chat = [{"role": "user", "content": "Which number?"}]
    assert after.apply_chat_template(chat, tokenize=False) == before.apply_chat_template(chat, tokenize=False)


def test_large_models_are_split_into_files_with_an_index(checkpoint: Make) -> None:
    options = ["--world", "2", "--dtype", "bfloat16"]
    request = checkpoint(*options)
    path, _, _ = run(request, max_shard_bytes=100_000)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in path.glob("*.safetensors"))
    assert len(files) > 2 and set(index["weight_map"].values()) == set(files)
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert index["metadata"]["total_size"] == sum(p.numel() * 2 for p in original(request, options).parameters())
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(path)), logits(original(request, options)))


def test_overrides_of_the_config_are_applied(checkpoint: Make) -> None:
    request = checkpoint("--world", "2", "--dtype", "bfloat16")
    change_policy(request, hf_overrides={"max_position_embeddings": 77})
    path, _, _ = run(request)
    assert json.loads((path / "config.json").read_text())["max_position_embeddings"] == 77
