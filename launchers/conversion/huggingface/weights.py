"""Writes the tensors of a checkpoint as safetensors files of bounded size; only one file's tensors are in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
import torch
from safetensors.torch import save_file

from rollyard.launchers.conversion.huggingface.dcp_checkpoint import DcpCheckpoint
from rollyard.launchers.conversion.huggingface.model_config import ModelSkeleton
from rollyard.launchers.conversion.huggingface.stages import stage
from rollyard.records.errors import RunError
from rollyard.records.io.file_modes import set_default_mode

MAX_SHARD_BYTES = 5_000_000_000
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Selection:
    """Which tensors of the checkpoint are written."""

    written: list[str]
    tied: dict[str, str]
    left_out: list[str]


def select(checkpoint: DcpCheckpoint, skeleton: ModelSkeleton) -> Selection:
    """Leave out copies of tied weights and buffers that the model computes. Raises RunError if tied weights differ."""
    names = checkpoint.tensors
    left_out = [name for name in names if name in skeleton.computed_buffers]
    tied = {name: original for name, original in skeleton.tied.items() if name in names and original in names}
    for name, original in tied.items():
        values = checkpoint.read([name, original])
        if not same_values(values[name], values[original]):
            raise RunError(
                f"the model's config ties {name} to {original}, but the checkpoint holds different values. Set "
                "policy.hf_overrides.tie_word_embeddings to false in --dcp-config if the model was trained untied"
            )
    return Selection([name for name in names if name not in tied and name not in left_out], tied, left_out)


def write_weights(
    checkpoint: DcpCheckpoint,
    names: list[str],
    folder: Path,
    report: Callable[[str], None],
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> dict[str, str]:
    """Write the tensors and, if there are several files, their index. Returns the file of each tensor."""
    shards = _shards(checkpoint, names, max_shard_bytes)
    placed: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        tensors = {name: tensor.contiguous() for name, tensor in checkpoint.read(shard).items()}
        with stage(f"writing {folder / file}"):
            save_file(tensors, folder / file, metadata={"format": "pt"})
            set_default_mode([folder / file])
        placed |= dict.fromkeys(shard, file)
        if len(shards) > 1:
            report(f"Wrote {file}")
    if len(shards) > 1:
        size = sum(checkpoint.tensors[name].size for name in names)
        index = {"metadata": {"total_size": size}, "weight_map": placed}
        (folder / INDEX).write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
    return placed


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same type, shape and bits; NaN equals NaN."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return bool(torch.equal(_bytes(one), _bytes(other)))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _shards(checkpoint: DcpCheckpoint, names: list[str], max_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    size = 0
    for name in names:
        if shards[-1] and size + checkpoint.tensors[name].size > max_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += checkpoint.tensors[name].size
    return shards
