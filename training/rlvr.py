"""A training config of rlvr-experiments (`entrypoints/train_grpo.py CONFIG`), and its conversion to a TrainConfig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.overrides import format_value
from rollyard.services.server.settings import parse_settings
from rollyard.training.train_config import TrainConfig


class RlvrSection(BaseModel):
    """Base class of the sections. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class RunSection(RlvrSection):
    name: str | None = None
    seed: int = 42
    port_start: int | None = None


class ModelSection(RlvrSection):
    path: str


class RlvrTokenizerSection(RlvrSection):
    model_config = ConfigDict(extra="allow")

    pretrained_model_name_or_path: str | None = None


class TrainingSection(RlvrSection):
    num_epochs: int | None = Field(default=None, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    max_staleness: int = Field(default=0, ge=0)
    abort_in_flight: bool | None = None
    checkpoint_interval: int | None = Field(default=None, ge=0)
    resume_step: int | None = None
    seq_len_buckets: tuple[int, ...] = ()
    completion_len_buckets: tuple[int, ...] = ()
    prompts_per_rollout_sync: int | None = None
    prompts_per_reference_sync: int | None = None
    prompts_per_optim_step: int = Field(ge=1)
    prompts_per_forward_backward: int = Field(default=1, ge=1)
    completions_per_micro_batch: int | dict[int, int] | None = None
    """Sequences of a micro-batch, or their number for each length."""
    max_concurrent_tasks: int = Field(default=64, ge=1)
    """Prompts in flight, with all their completions."""
    rollout_timeout_s: float = Field(default=9999.0, gt=0)
    alpha_grpo: float = 1.0
    alpha_sft: float = 0.0


class LossSection(RlvrSection):
    name: Literal["grpo", "drgrpo", "dapo"] = "drgrpo"
    beta: float = Field(default=0.0, ge=0)
    eps: float | None = None
    eps_low: float | None = None
    eps_high: float | None = None
    C: float | None = Field(default=None, gt=0)


class DataIterSection(RlvrSection):
    system_prompt: str = ""
    assistant_prefix: str = ""
    skip_chat_template: bool = True


class SamplingSection(RlvrSection):
    temperature: float = Field(default=1.0, gt=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = -1
    max_tokens: int = Field(default=512, ge=1)
    n: int = Field(ge=2)
    """Completions per prompt."""
    logprobs: int | None = 0
    stop: str | tuple[str, ...] = ()


class BufferSection(RlvrSection):
    maxsize: int = 0
    max_reads: int = 1


class RoleSection(RlvrSection):
    name: str
    kind: Literal["titan", "vllm"]
    config: Json = Field(default_factory=dict)


class RlvrConfig(RlvrSection):
    run: RunSection = RunSection()
    model: ModelSection
    tokenizer: RlvrTokenizerSection = RlvrTokenizerSection()
    training: TrainingSection
    verifier: Json = Field(default_factory=dict)
    loss: LossSection = LossSection()
    data: Json
    data_iter: DataIterSection = DataIterSection()
    sampling: SamplingSection
    buffer: BufferSection = BufferSection()
    roles: tuple[RoleSection, ...]
    sync: Json = Field(default_factory=dict)
    sft_data: Json | None = None
    sft_data_iter: Json | None = None
    trace_path: str | None = None


_DEFAULT_EPSILON = 0.2
_DAPO_EPSILON_HIGH = 0.28
_DR_GRPO_CONSTANT = 2048
_POLICY = "policy_model.responses_api_models.local_vllm_model"


@dataclass(frozen=True)
class ConvertedConfig:
    config: TrainConfig
    notes: tuple[str, ...]
    """What the file asks for and ng_train does in another way, one line each."""


def train_config(rlvr: RlvrConfig, output_dir: Path) -> ConvertedConfig:
    """Return the training run that the file describes. Raises OperatorError for what cannot be done here."""
    _refuse(rlvr)
    training, sampling = rlvr.training, rlvr.sampling
    trainer, engine = roles_of(rlvr.roles)
    environments = environments_of(rlvr.data)
    longest = max(training.seq_len_buckets, default=None)
    optimizer = optimizer_settings(trainer, longest, training.completions_per_micro_batch)
    keys: Json = {
        "model": rlvr.model.path,
        "output_dir": output_dir,
        "environments": environments,
        "overrides": [f"++{_POLICY}.{name}={format_value(value)}" for name, value in engine_settings(engine).items()],
        "data": mixture_of(rlvr.data, rlvr.run.seed),
        "seed": rlvr.run.seed,
        "max_steps": training.max_steps or 0,
        "epochs": training.num_epochs or 1,
        "groups_per_step": training.prompts_per_optim_step,
        "group_size": sampling.n,
        "responses_create_params": _sampling(rlvr),
        "num_samples_in_parallel": training.max_concurrent_tasks * sampling.n,
        "rollout_timeout_s": training.rollout_timeout_s,
        "max_staleness": training.max_staleness,
        "loss": _loss(rlvr),
        "optimizer": optimizer,
        "checkpoint_interval": training.checkpoint_interval or 0,
    }
    return ConvertedConfig(parse_settings(TrainConfig, keys, "config"), tuple(_notes(rlvr, trainer)))


def _refuse(rlvr: RlvrConfig) -> None:
    """Raise OperatorError for settings without a counterpart that would change the result."""
    training = rlvr.training
    tokenizer = rlvr.tokenizer.pretrained_model_name_or_path
    problems = {
        "training.resume_step: a run resumes from its own output_dir; remove the key": training.resume_step is not None,
        "training needs max_steps or num_epochs": training.max_steps is None and training.num_epochs is None,
        "training.alpha_sft and sft_data: supervised examples cannot be mixed in; remove them": bool(
            rlvr.sft_data or training.alpha_sft
        ),
        "training.alpha_grpo: expected 1.0; multiply the learning rate instead": training.alpha_grpo != 1.0,
        "buffer.max_reads: expected 1, because every rollout is used in one update": rlvr.buffer.max_reads != 1,
        f"tokenizer is {tokenizer}, but model.path is {rlvr.model.path}: expected the model's own tokenizer": (
            tokenizer not in (None, rlvr.model.path)
        ),
        "data_iter.system_prompt and assistant_prefix: the prompts are those of the rows; remove the keys, and prepare "
        "the rows with --system-prompt": bool(rlvr.data_iter.system_prompt or rlvr.data_iter.assistant_prefix),
        "training.prompts_per_reference_sync: the reference is always the initial model; remove the key, or set it to "
        "9999999": (training.prompts_per_reference_sync or 10**6) < 10**5 and rlvr.loss.beta > 0,
        "loss.C: only drgrpo has this constant": rlvr.loss.C is not None and rlvr.loss.name != "drgrpo",
    }
    if found := [text for text, is_problem in problems.items() if is_problem]:
        raise OperatorError("; ".join(found))


def _loss(rlvr: RlvrConfig) -> Json:
    loss = rlvr.loss
    found: Json = {"algorithm": loss.name, "beta": loss.beta}
    if rlvr.sampling.top_p < 1 or rlvr.sampling.top_k > 0:
        found["constrained_turns"] = "reweight"
    if loss.name == "drgrpo":
        found["length_constant"] = round(loss.C or _DR_GRPO_CONSTANT)
    default = 0.0 if loss.name == "drgrpo" else _DEFAULT_EPSILON
    low = next(value for value in (loss.eps_low, loss.eps, default) if value is not None)
    high = next(value for value in (loss.eps_high, loss.eps, default) if value is not None)
    if loss.name == "dapo" and loss.eps_high is None and loss.eps is None:
        high = _DAPO_EPSILON_HIGH
    # 0 means no clipping there; ng_train's dr_grpo does not clip by itself.
    if low > 0:
        found["epsilon"] = low
    if high > 0:
        found["epsilon_high"] = high
    if loss.name != "drgrpo" and min(low, high) <= 0:
        raise OperatorError(f"loss.eps is {min(low, high):g}: without clipping, use loss.name: drgrpo")
    return found


def _sampling(rlvr: RlvrConfig) -> Json:
    sampling = rlvr.sampling
    longest = max(rlvr.training.completion_len_buckets, default=sampling.max_tokens)
    found: dict[str, Any] = {
        "temperature": sampling.temperature,
        "max_output_tokens": min(sampling.max_tokens, longest),
    }
    if sampling.top_p < 1:
        found["top_p"] = sampling.top_p
    stop = [sampling.stop] if isinstance(sampling.stop, str) else list(sampling.stop)
    extra: Json = {"stop": stop} if stop else {}
    if sampling.top_k > 0:
        extra["top_k"] = sampling.top_k
    if extra:
        found["metadata"] = {"extra_body": orjson.dumps(extra).decode()}
    return found


def _notes(rlvr: RlvrConfig, trainer: Json) -> Iterator[str]:
    training, sampling, loss = rlvr.training, rlvr.sampling, rlvr.loss.name
    longest = max(training.seq_len_buckets, default=0)
    of_trainer = section(trainer, "training")
    degrees = [value for name, value in section(trainer, "parallelism").items() if name.endswith("_degree")]
    notes = {
        "training.num_epochs is not used, because training.max_steps is set": training.max_steps
        and training.num_epochs,
        "training.prompts_per_rollout_sync: the engines get the new weights after every update": (
            training.prompts_per_rollout_sync not in (None, training.prompts_per_optim_step)
        ),
        "training.abort_in_flight: requests in flight are kept, and each token has the version of its weights": (
            training.abort_in_flight
        ),
        f"training.seq_len_buckets: longer sequences than {longest} tokens are masked, not truncated": longest,
        "data_iter.skip_chat_template: prompts are messages, which the engine renders with the model's template": (
            rlvr.data_iter.skip_chat_template
        ),
        "sampling.top_p and top_k: tokens have importance weights (loss.constrained_turns: reweight)": (
            sampling.top_p < 1 or sampling.top_k > 0
        ),
        "loss: deviations of a group have the divisor n - 1; there, it is n": loss in ("grpo", "dapo"),
        "loss.name dapo: the mean is over all tokens of the update; there, over those of each micro-batch": loss
        == "dapo",
        "roles: float16 becomes bfloat16, which needs no loss scaling": (
            "float16" in (of_trainer.get("dtype"), of_trainer.get("mixed_precision_param"))
        ),
        "roles: optimizer.eps is that of PyTorch (1e-8)": "eps" in section(trainer, "optimizer"),
        "roles: parallelism of the trainer is set with optimizer.accelerate_config": any(
            value not in (1, None) for value in degrees
        ),
    }
    yield from (text for text, applies in notes.items() if applies)
    unused = {
        "run.port_start": rlvr.run.port_start,
        "verifier": rlvr.verifier,
        "buffer.maxsize": rlvr.buffer.maxsize,
        "sync": rlvr.sync,
        "trace_path": rlvr.trace_path,
    }
    if names := [name for name, value in unused.items() if value]:
        yield f"not used: {', '.join(names)}"


ENVIRONMENTS = {
    "gsm8k": "gsm8k",
    "math": "math",
    "humaneval": "humaneval",
    "mbpp": "mbpp",
    "ifeval": "ifeval",
    "if_multi_constraints": "ifeval",
}
"""Dataset of rlvr-experiments -> environment."""
_DATASET_KEYS = ("name", "split", "weight", "count", "order", "path")


def environments_of(data: Json) -> list[str]:
    """Return the environments of the datasets. Raises OperatorError for datasets without one."""
    return list(dict.fromkeys(_environment(str(entry.get("name"))) for entry in _entries(data)))


def mixture_of(data: Json, seed: int) -> Json:
    """Return the `data` of a TrainConfig. Its rows are in files that `prepare` of each environment writes."""
    return {
        "mode": data.get("mode", "weighted"),
        "seed": data.get("seed", seed),
        "datasets": [_dataset(entry) for entry in _entries(data)],
    }


def _entries(data: Json) -> list[Json]:
    name = data.get("dataset")
    if name is None:
        raise OperatorError("data.dataset is missing; expected mixed, or the name of a dataset")
    if name != "mixed":
        return [{"name": name, **{key: value for key, value in data.items() if key != "dataset"}}]
    unknown = [key for key in data if key not in ("dataset", "mode", "seed", "datasets")]
    if unknown:
        raise OperatorError(f"data has the unknown keys {', '.join(unknown)}; expected mode, seed and datasets")
    entries: list[Json] = data.get("datasets") or []
    if not entries or not all(isinstance(entry, dict) and entry.get("name") for entry in entries):
        raise OperatorError("data.datasets: expected a list of datasets with a name each")
    return entries


def _environment(name: str) -> str:
    if name not in ENVIRONMENTS:
        raise OperatorError(f"dataset {name!r} has no environment here; expected one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name]


def _dataset(entry: Json) -> Json:
    name = str(entry["name"])
    unknown = [key for key in entry if key not in _DATASET_KEYS]
    if unknown:
        raise OperatorError(
            f"dataset {name}: {', '.join(unknown)} cannot be passed to its loader; select rows when you prepare them, "
            "or use ng_train with `where`"
        )
    environment, split = _environment(name), entry.get("split", "train")
    found: Json = {key: entry[key] for key in _DATASET_KEYS if entry.get(key) is not None}
    if environment != name and "path" not in found:  # else the default, resources_servers/NAME/data/SPLIT.jsonl
        found["path"] = f"resources_servers/{environment}/data/{name}_{split}.jsonl"
    return {**found, "split": split, "agent_name": f"{environment}_agent"}


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
    scheduler = section(trainer, "lr_scheduler")
    if (ratio := scheduler.get("decay_ratio")) not in (0, None):
        raise OperatorError(
            f"roles: lr_scheduler.decay_ratio is {ratio}; expected 0 (constant) or null (linear from the warmup on)"
        )
    return {
        "learning_rate": optimizer["lr"],
        "weight_decay": optimizer.get("weight_decay", _WEIGHT_DECAY),
        "max_grad_norm": training.get("max_norm", _MAX_NORM),
        "lr_scheduler": "linear" if ratio is None else "constant_with_warmup",
        "warmup_steps": scheduler.get("warmup_steps", 0),
        "max_seq_len": length,
        "micro_token_budget": max([bucket * count for bucket, count in sizes.items() if bucket <= length] + [length]),
        "dtype": _DTYPES[dtype],
        "gradient_checkpointing": section(trainer, "activation_checkpoint").get("mode", "none") != "none",
    }


def engine_settings(engine: Json) -> Json:
    found = {name: engine[key] for key, name in _ENGINE.items() if engine.get(key) is not None}
    return found | {f"extra_flags.{name}": engine[name] for name in _FLAGS if engine.get(name) is not None}
