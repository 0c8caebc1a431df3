"""How weights reach the engines, and what engines need for it."""

from __future__ import annotations

from typing import Literal

from rollyard.records.errors import RunError
from rollyard.records.types import Json
from rollyard.training.train_config import WeightSettings

Method = Literal["files", "nccl", "ipc"]


def resolved_method(
    settings: WeightSettings, *, trainer_has_gpu: bool, engines_on_cpu: bool, has_adapters: bool, processes: int = 1
) -> Method:
    """Return the method for `auto`: nccl between GPUs if one trainer process has all the weights, otherwise files.

    `has_adapters`: whether adapters are trained. Raises RunError if the chosen method is impossible.
    """
    obstacle = (
        "adapters are published as files" if has_adapters
        else "the weights are divided among several processes" if processes > 1
        else "the trainer has no GPU" if not trainer_has_gpu
        else "the engines run on a CPU" if engines_on_cpu
        else ""
    )  # fmt: skip
    if settings.method == "auto":
        return "files" if obstacle else "nccl"
    if settings.method != "files" and obstacle:
        raise RunError(f"weights.method is {settings.method}, but {obstacle}: set weights.method: files")
    return settings.method


def engine_options(method: Method, *, max_lora_rank: int | None = None) -> tuple[Json, dict[str, str]]:
    """Return the flags (`extra_flags`) and environment variables that vLLM engines need for a method.

    `max_lora_rank`: rank of the adapters that they load; None if they load none.
    """
    flags: Json = {} if method == "files" else {"weight_transfer_config": {"backend": method}}
    environment = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"} if method == "ipc" else {}
    if max_lora_rank is not None:
        # vLLM has fixed sizes, the smallest of which are 8 and 16.
        rank = next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= max_lora_rank), None)
        if rank is None:
            raise RunError(f"optimizer.lora.rank is {max_lora_rank}; vLLM loads adapters of rank 512 or less")
        flags |= {"enable_lora": True, "max_lora_rank": rank}
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    return flags, environment
