"""The roles of a training config of rlvr-experiments: trainers (torchtitan) and engines (vLLM)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.training.rlvr.rlvr_config import RoleSection

_DTYPES = {"float32": "float32", "bfloat16": "bfloat16", "float16": "bfloat16"}
_WEIGHT_DECAY = 0.1
_MAX_NORM = 1.0
"""Defaults of torchtitan."""
_ENGINE = {
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "engine_replicas",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
}
_FLAGS = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill", "enforce_eager")


def roles_of(roles: Sequence[RoleSection]) -> tuple[Json, Json]:
    """Return the settings of the trainer and of the engine that plays. Raises OperatorError if one is missing."""
    trainers = [role for role in roles if role.kind == "titan" and role.config.get("trainable", True)]
    engines = [role for role in roles if role.kind == "vllm" and role.name != "reference"]
    if len(trainers) != 1 or len(engines) != 1:
        raise OperatorError(
            f"roles has {len(trainers)} trainable roles of kind titan and {len(engines)} of kind vllm besides "
            "`reference`; expected one of each"
        )
    return trainers[0].config, engines[0].config


def section(role: Json, name: str) -> Json:
    """Return a section of a role's settings, {} if it is absent or empty. Raises OperatorError if it is no mapping."""
    found = role.get(name) or {}
    if not isinstance(found, dict):
        raise OperatorError(f"roles: {name} is {found!r}; expected a mapping")
    return found


def optimizer_settings(trainer: Json, longest: int | None, per_micro_batch: int | Mapping[int, int] | None) -> Json:
    """Return the keys of TrainConfig.optimizer. Raises OperatorError for schedules that ng_train does not have."""
    optimizer, training = section(trainer, "optimizer"), section(trainer, "training")
    if (name := optimizer.get("name", "AdamW")) != "AdamW":
        raise OperatorError(f"roles: optimizer.name is {name}; expected AdamW")
    if "lr" not in optimizer:
        raise OperatorError("roles: the trainer has no optimizer.lr")
    dtype = training.get("dtype", "float32")
    if dtype not in _DTYPES:
        raise OperatorError(f"roles: training.dtype is {dtype!r}; expected one of {', '.join(_DTYPES)}")
    length = longest or training.get("seq_len")
    if length is None:
        raise OperatorError("expected training.seq_len_buckets, or training.seq_len of the trainer")
    sizes = per_micro_batch if isinstance(per_micro_batch, Mapping) else {length: per_micro_batch or 1}
    return {
        "learning_rate": optimizer["lr"],
        "weight_decay": optimizer.get("weight_decay", _WEIGHT_DECAY),
        "max_grad_norm": training.get("max_norm", _MAX_NORM),
        **_schedule(section(trainer, "lr_scheduler")),
        "max_seq_len": length,
        "micro_token_budget": max([bucket * count for bucket, count in sizes.items() if bucket <= length] + [length]),
        "dtype": _DTYPES[dtype],
        "gradient_checkpointing": section(trainer, "activation_checkpoint").get("mode", "none") != "none",
    }


def _schedule(scheduler: Mapping[str, Any]) -> Json:
    ratio = scheduler.get("decay_ratio")
    if ratio not in (0, None):
        raise OperatorError(
            f"roles: lr_scheduler.decay_ratio is {ratio}; expected 0 (constant) or null (linear from the warmup on)"
        )
    name = "linear" if ratio is None else "constant_with_warmup"
    return {"lr_scheduler": name, "warmup_steps": scheduler.get("warmup_steps", 0)}


def engine_settings(engine: Json) -> Json:
    """Return settings of local_vllm_model."""
    found = {name: engine[key] for key, name in _ENGINE.items() if engine.get(key) is not None}
    return found | {f"extra_flags.{name}": engine[name] for name in _FLAGS if engine.get(name) is not None}
