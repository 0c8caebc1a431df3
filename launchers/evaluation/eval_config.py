"""EvalConfig: everything that defines an evaluation, from a YAML file or the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field

from rollyard.records.types import Parallel, Record
from rollyard.services.config.overrides import ConfigOverride

PolicyApi = Literal["chat", "responses"]
"""The API of an endpoint: OpenAI's Chat Completions or its Responses API."""
_CONFIG = ConfigDict(
    frozen=True, extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True, coerce_numbers_to_str=True
)


class VllmSettings(Record):
    model_config = _CONFIG

    command: tuple[str, ...] = ()
    """The program, if it is in a different environment: [/path/to/env/bin/vllm]."""
    host: str = "127.0.0.1"
    """Address on which vLLM listens."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Port on which vLLM listens; null: a free port."""
    served_model_name: str | None = None
    """Name of the model in requests; default: its hub name or folder as given."""
    dtype: str = "auto"
    """Type of the weights: auto, bfloat16, float16 or float32."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of GPUs over which each layer is split."""
    pipeline_parallel_size: int = Field(default=1, ge=1)
    """Number of groups of GPUs over which the layers are distributed."""
    gpu_memory_utilization: float = Field(default=0.85, gt=0, le=1)
    """Share of the GPU's memory that vLLM may use, 0 to 1."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Maximum length of prompt and response in tokens; None: the model's."""
    tool_call_parser: str | None = "hermes"
    """Format of the model's tool calls; `hermes` is that of Qwen models. null: no tool calls."""
    trust_remote_code: bool = False
    """Run Python code that is part of the model."""
    args: tuple[str, ...] = ()
    """More arguments of `vllm serve`, each passed unchanged, without a shell."""
    ready_timeout_s: float = Field(default=1800.0, gt=0)
    """Maximum time until the server answers, in seconds. Downloading and loading a large model takes minutes."""
    health_timeout_s: float = Field(default=60.0, gt=0)
    """If the running server does not answer GET /health for this long, it counts as crashed."""


class EvalConfig(Record):
    """The keys of an evaluation's YAML file, which are also the options of `ng_eval`."""

    model_config = _CONFIG

    model: str | None = None
    """What to evaluate: `openai/gpt-4.1-mini` and other providers' shorthands, `vllm/Qwen/Qwen3-4B` (a hub name or a
    folder that this command serves with vLLM), `builtin`, or the name of the model at `policy_base_url`."""
    policy_base_url: str | None = None
    """URL of an endpoint that is already running, such as http://127.0.0.1:8000/v1."""
    policy_api_key: str | None = Field(default=None, repr=False)
    """API key of the endpoint; also read from the variable policy_api_key, or from that of the provider."""
    policy_api: PolicyApi | None = None
    """API of the endpoint; default: chat, and responses for openai/..."""
    vllm: VllmSettings = Field(default_factory=VllmSettings)
    """How vllm/... is served; most settings have the names of the options of `vllm serve`."""
    head: str | None = None
    """HOST:PORT of a running stack to use instead of starting one; it has its own model server."""
    environments: tuple[str, ...] = ()
    """Environments whose default configs are loaded: `grl_sokoban` is
    resources_servers/grl_sokoban/configs/grl_sokoban.yaml."""
    config_paths: tuple[str, ...] = ()
    """More config files, or all of them, as for `ng_run`."""
    overrides: tuple[str, ...] = ()
    """Overrides of the servers' settings, as for `ng_run`: `grl_sokoban_game_agent.agents.game_agent.max_steps=20`."""
    agent_name: str | None = None
    """Agent for rows without an agent_ref; default: the only agent of the configs."""
    input_jsonl_fpath: str | None = None
    """Dataset to run; default: the example rows of the environments."""
    data: str | dict[str, Any] | None = None
    """Mixture of datasets to use instead of input_jsonl_fpath."""
    limit: int | None = Field(default=None, ge=1)
    """Run only the first rows of the dataset."""
    num_repeats: int = Field(default=1, ge=1)
    """Rollouts per row."""
    num_repeats_add_seed: bool = False
    """Send the number of the repeat as the sampling seed."""
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters, such as {temperature: 0.8, max_output_tokens: 2000}."""
    num_samples_in_parallel: Parallel = 32
    """Concurrent episodes; auto: the number is found while collecting."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Maximum duration of an episode, in seconds."""
    max_failure_rate: float = Field(default=0.5, ge=0, le=1)
    """End the attempt if a larger share of its episodes fails."""
    drain_timeout_s: float = Field(default=60.0, ge=0)
    """How long episodes in flight may take to finish after Ctrl-C, SIGTERM or SIGUSR1, in seconds."""
    output_dir: Path
    """Folder of the evaluation: rollouts, report and logs."""
    shard: str | None = None
    """i/n, if n jobs collect into the same folder and this is number i, from 1 to n. Its logs are in
    shards/<i>-of-<n>/logs."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`."""
    colocate: bool = False
    """Run all servers in one process, which starts faster; see ng_run."""
    ready_timeout_s: float = Field(default=300.0, gt=0)
    """Maximum time for the servers to become ready, in seconds."""
    ray_head_node_address: str | None = None
    """Ray cluster (HOST:PORT) for vLLM and the servers."""
    start_ray: bool = False
    """Start a Ray cluster on this host if vLLM uses several GPUs, and use it as ray_head_node_address."""
    max_attempts: int = Field(default=20, ge=1)
    """How often the whole evaluation is tried if one of its processes crashes."""
    pause_s: float = Field(default=10.0, ge=0)
    """Pause before the next attempt, in seconds."""


def load_eval_config(path: str | None, overrides: Iterable[ConfigOverride], roots: Sequence[Path]) -> EvalConfig:
    """Read the file `path`, which is searched for in the roots and their folders `configs`, and apply the overrides."""
    from rollyard.services.config.settings_file import load_settings  # with OmegaConf, which --help does not need

    return load_settings(EvalConfig, path, overrides, roots)
