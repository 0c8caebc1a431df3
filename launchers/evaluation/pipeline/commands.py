"""Builds the command lines of Rollyard's own commands that an evaluation runs."""

from __future__ import annotations

from typing import Any

from rollyard.launchers.evaluation.pipeline.model_source import ModelSource
from rollyard.launchers.evaluation.pipeline.plan import EvalPlan
from rollyard.records.io.own_command import own_command
from rollyard.services.config.overrides.command_line import as_override

KEY_VARIABLE = "ROLLYARD_EVAL_POLICY_KEY"
"""Environment variable for the model's API key, which must not be visible in the list of processes."""


def run_command(plan: EvalPlan, base_url: str, *, head_port: int = 0) -> list[str]:
    """Return the `ng_run` that starts the servers for a model at `base_url`."""
    config = plan.config
    options = (f"+head_port={head_port}", "+private=true")
    command = own_command("ng_run", as_override("config_paths", list(plan.config_paths)), *options)
    if config.colocate:
        command.append("+colocate=true")
    command.append(f"+ready_timeout_s={config.ready_timeout_s:g}")
    command += model_overrides(plan.source, base_url)
    return [*command, *config.overrides]


def model_overrides(source: ModelSource, base_url: str) -> list[str]:
    """Return the overrides that name the model. On the command line, they take precedence over an env.yaml."""
    if source.kind not in ("served", "endpoint"):
        return []
    return [
        as_override("policy_base_url", base_url),
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
