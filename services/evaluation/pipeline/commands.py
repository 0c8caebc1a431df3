"""Builds the command lines of Rollyard's own commands that an evaluation runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.services.config.overrides.command_line import as_override
from rollyard.services.evaluation.pipeline.model_source import KEY_VARIABLE, ModelSource
from rollyard.services.evaluation.pipeline.plan import EvalPlan
from rollyard.services.io.own_command import own_command
from rollyard.services.types import Json

_LOCAL = "policy_model.responses_api_models.local_vllm_model."
_EARLIER = "policy_model.responses_api_models.vllm_model."
"""How overrides of a served model began when `ng_eval` started vLLM itself."""


def run_command(plan: EvalPlan, ray: str | None = None) -> list[str]:
    """Return the `ng_run` that starts the servers, on the Ray cluster at `ray` if there is one."""
    config = plan.config
    options = ("+head_port=0", "+private=true")
    command = own_command("ng_run", as_override("config_paths", list(plan.config_paths)), *options)
    if config.colocate:
        command.append("+colocate=true")
    command.append(f"+ready_timeout_s={config.ready_timeout_s:g}")
    if ray is not None:
        command.append(as_override("ray_head_node_address", ray))
    served = {**plan.served, "ray_address": ray} if plan.served and ray is not None else plan.served
    command += model_overrides(plan.source, served)
    return [*command, *server_overrides(config.overrides, plan.source)]


def server_overrides(given: Sequence[str], source: ModelSource) -> list[str]:
    """Return the overrides of the servers' settings, also those that an earlier version wrote for a served model."""
    return [text.replace(_EARLIER, _LOCAL, 1) for text in given] if source.kind == "served" else list(given)


def model_overrides(source: ModelSource, served: Json) -> list[str]:
    """Return the overrides that name the model. On the command line, they take precedence over an env.yaml.

    `served`: the settings of its local_vllm_model.
    """
    if source.kind == "served":
        return [as_override("policy_model", {"responses_api_models": {"local_vllm_model": served}})]
    if source.kind != "endpoint":
        return []
    return [
        as_override("policy_base_url", source.base_url),
        as_override("policy_model_name", source.name),
        f"+policy_api_key=${{oc.env:{KEY_VARIABLE}}}",
    ]


def collect_command(plan: EvalPlan, head_url: str) -> list[str]:
    """Return the `ng_collect_rollouts` that collects the missing rollouts."""
    config = plan.config
    options: dict[str, Any] = {
        "output_jsonl_fpath": str(plan.folder.rollouts.output),
        "input_jsonl_fpath": plan.input_jsonl_fpath,
        "data": plan.data,
        "agent_name": plan.agent,
        "limit": config.limit,
        "num_repeats": config.num_repeats,
        "num_repeats_add_seed": config.num_repeats_add_seed or None,
        "num_samples_in_parallel": config.num_samples_in_parallel,
        "responses_create_params": dict(config.responses_create_params) or None,
        "rollout_timeout_s": config.rollout_timeout_s,
        "max_failure_rate": config.max_failure_rate,
        "worker": config.worker,
        "head": head_url,
    }
    given = [as_override(key, value) for key, value in options.items() if value is not None]
    return own_command("ng_collect_rollouts", *given)


def report_command(plan: EvalPlan) -> list[str]:
    """Return the `ng_reward_profile` that writes the report."""
    options: dict[str, Any] = {
        "jsonl_fpath": [str(plan.folder.rollouts.output)],
        "output_dir": str(plan.folder.root),
        "report_name": plan.folder.report.stem,
        "names": [plan.model_title],
        "pass_threshold": plan.config.pass_threshold,
    }
    given = [as_override(key, value) for key, value in options.items() if value is not None]
    return own_command("ng_reward_profile", *given)
