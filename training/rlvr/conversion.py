"""Converts a training config of rlvr-experiments to a TrainConfig."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.overrides.hydra_grammar import format_value
from rollyard.services.server.settings import parse_settings
from rollyard.training.rlvr.rlvr_config import RlvrConfig
from rollyard.training.rlvr.rlvr_data import environments_of, mixture_of
from rollyard.training.rlvr.rlvr_roles import engine_settings, optimizer_settings, roles_of, section
from rollyard.training.train_config import TrainConfig

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
    training, sampling = rlvr.training, rlvr.sampling
    if training.max_steps and training.num_epochs:
        yield "training.num_epochs is not used, because training.max_steps is set"
    if training.prompts_per_rollout_sync not in (None, training.prompts_per_optim_step):
        yield "training.prompts_per_rollout_sync: the engines get the new weights after every update"
    if training.abort_in_flight:
        yield "training.abort_in_flight: requests in flight are kept, and each token has the version of its weights"
    if training.seq_len_buckets:
        longest = max(training.seq_len_buckets)
        yield f"training.seq_len_buckets: longer sequences than {longest} tokens are masked, not truncated"
    if rlvr.data_iter.skip_chat_template:
        yield "data_iter.skip_chat_template: prompts are messages, which the engine renders with the model's template"
    if sampling.top_p < 1 or sampling.top_k > 0:
        yield "sampling.top_p and top_k: tokens have importance weights (loss.constrained_turns: reweight)"
    if rlvr.loss.name in ("grpo", "dapo"):
        yield "loss: deviations of a group have the divisor n - 1; there, it is n"
    if rlvr.loss.name == "dapo":
        yield "loss.name dapo: the mean is over all tokens of the update; there, over those of each micro-batch"
    half = [name for name in ("dtype", "mixed_precision_param") if section(trainer, "training").get(name) == "float16"]
    if half:
        yield "roles: float16 becomes bfloat16, which needs no loss scaling"
    if "eps" in section(trainer, "optimizer"):
        yield "roles: optimizer.eps is that of PyTorch (1e-8)"
    degrees = {name: value for name, value in section(trainer, "parallelism").items() if name.endswith("_degree")}
    if any(value not in (1, None) for value in degrees.values()):
        yield "roles: parallelism of the trainer is set with optimizer.accelerate_config"
    unused = {
        "run.port_start": rlvr.run.port_start,
        "verifier": rlvr.verifier,
        "buffer.maxsize": rlvr.buffer.maxsize,
        "sync": rlvr.sync,
        "trace_path": rlvr.trace_path,
    }
    if names := [name for name, value in unused.items() if value]:
        yield f"not used: {', '.join(names)}"
