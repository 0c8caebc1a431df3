"""LoRA adapters: versions of the policy that vLLM adds to the weights that it was started with.

An engine loads each version under a name of its own, which its responses report. vLLM's `load_inplace` is not used: a
request that was admitted with it makes vLLM (0.32) read its own version's folder again at every step, so that requests
of two versions would replace each other's weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollyard.records.io.safetensors_headers import Tensor
from rollyard.responses_api_models.chat_engine.weights.model_signature import ModelSignature
from rollyard.responses_api_models.chat_engine.weights.rejections import bad_request
from rollyard.responses_api_models.chat_engine.weights.safetensors_headers import read_json

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ENABLE = (
    "vLLM loads adapters with --enable-lora, a sufficient --max-lora-rank, and "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
)
CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_NAME = "adapter:"


def adapter_name(version: str) -> str:
    """Return the model name of a version that is an adapter."""
    return f"{_NAME}{version}"


def version_of(name: str) -> str | None:
    """Return the version that a model name denotes; None if it is not the name of an adapter."""
    return name.removeprefix(_NAME) if name.startswith(_NAME) else None


def compare_adapter(folder: Path, tensors: Mapping[str, Tensor], engine: ModelSignature | None) -> None:
    """Raises Failure bad_request if a folder is not a LoRA adapter of the model `engine` (None if unknown)."""
    config = read_json(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise bad_request(f"{folder / CONFIG}: peft_type is {config.get('peft_type')!r}; expected 'LORA'")
    for name, tensor in tensors.items():
        module, _, part = name.removesuffix(".weight").removeprefix(_PREFIX).rpartition(".lora_")
        if part not in ("A", "B"):
            raise bad_request(
                f"{folder} contains {name}, which vLLM does not load: train lora_A and lora_B of linear modules only, "
                "or publish merged weights"
            )
        shape = engine.shapes.get(f"{module}.weight") if engine and engine.shapes else None
        if engine and engine.shapes and shape is None:
            raise bad_request(f"{folder} is for a different model: the engines' model has no {module}")
        if shape and tensor.shape[part == "A"] != shape[part == "A"]:
            raise bad_request(
                f"{folder} is for a different model: {name} is {list(tensor.shape)}, but {module} is {list(shape)}"
            )
