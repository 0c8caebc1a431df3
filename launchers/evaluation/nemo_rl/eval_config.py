"""Converts a NeMo-RL evaluation to an EvalConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollyard.launchers.evaluation.eval_config import EvalConfig, VllmSettings
from rollyard.launchers.evaluation.nemo_rl.config import GenerationSection, NemoRlConfig
from rollyard.launchers.evaluation.nemo_rl.datasets import find_source
from rollyard.records.types import Json
from rollyard.services.server.settings import parse_settings


def to_eval_config(config: NemoRlConfig, rows: Path, output_dir: Path, **more: Any) -> EvalConfig:
    """Return the evaluation of `rows`, the prepared dataset. `more` are keys of EvalConfig, which take precedence.

    Raises OperatorError if `more` contains an invalid setting of vLLM.
    """
    generation, source = config.generation, find_source(config.data)
    limit = generation.max_new_tokens
    params: dict[str, Any] = {"temperature": generation.temperature, "top_p": generation.top_p}
    if limit is not None and limit < generation.vllm_cfg.max_model_len:
        # NeMo-RL's default is the context's length, which an endpoint refuses because the prompt needs room too.
        params["max_output_tokens"] = limit
    values: dict[str, Any] = {
        "model": _model(generation),
        "policy_base_url": generation.base_url,
        "vllm": _vllm(config, more.pop("vllm", None) or {}),
        "environments": (source.environment,) if source else (),
        "overrides": (*_server_overrides(config), *more.pop("overrides", ())),
        "input_jsonl_fpath": str(rows),
        "limit": config.data.limit,
        "num_repeats": config.eval.num_tests_per_prompt,
        "responses_create_params": params,
        "output_dir": output_dir,
    }
    return EvalConfig(**(values | more))


def _model(generation: GenerationSection) -> str:
    name = generation.model_name
    return name if name == "builtin" or generation.base_url else f"vllm/{name}"


def _vllm(config: NemoRlConfig, more: Json) -> VllmSettings:
    """Return the settings of `generation.vllm_cfg`, with those in `more` instead or in addition."""
    given = parse_settings(VllmSettings, more, "vllm")
    section = config.generation.vllm_cfg
    args = ["--seed", str(config.eval.seed)]
    if section.enforce_eager:
        args.append("--enforce-eager")
    if config.tokenizer.name and config.tokenizer.name != config.generation.model_name:
        args += ["--tokenizer", config.tokenizer.name]
    if config.tokenizer.chat_template:
        args += ["--chat-template", config.tokenizer.chat_template]
    settings = VllmSettings(
        dtype=section.precision,
        tensor_parallel_size=section.tensor_parallel_size,
        pipeline_parallel_size=section.pipeline_parallel_size,
        gpu_memory_utilization=section.gpu_memory_utilization,
        max_model_len=section.max_model_len,
    )
    changes = {name: getattr(given, name) for name in given.model_fields_set}
    return settings.model_copy(update={**changes, "args": (*args, *given.args)})


def _server_overrides(config: NemoRlConfig) -> tuple[str, ...]:
    """Return overrides for what is not a parameter of the Responses API."""
    if config.generation.model_name == "builtin":
        return ()
    body = "++policy_model.responses_api_models.vllm_model.extra_body"
    found = []
    if config.generation.top_k is not None and config.generation.top_k > 0:
        found.append(f"{body}.top_k={config.generation.top_k}")
    for name, value in (config.tokenizer.chat_template_kwargs or {}).items():
        found.append(f"{body}.chat_template_kwargs.{name}={str(value).lower() if isinstance(value, bool) else value}")
    return tuple(found)
