"""Training configs of rlvr-experiments become TrainConfigs, or are refused with a clear line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.datasets.settings import read_mixture
from rollyard.services.server.settings import parse_settings
from rollyard.training.rlvr.conversion import ConvertedConfig, train_config
from rollyard.training.rlvr.rlvr_config import RlvrConfig

MODEL = "Qwen/Qwen3-1.7B-Base"
CONFIG: Json = {
    "run": {"name": "gsm8k_grpo", "seed": 7, "port_start": 29500},
    "model": {"path": MODEL},
    "tokenizer": {"pretrained_model_name_or_path": MODEL, "use_fast": False},
    "training": {
        "max_steps": 200,
        "checkpoint_interval": 20,
        "max_staleness": 1,
        "seq_len_buckets": [768, 1280],
        "completion_len_buckets": [512, 1024],
        "prompts_per_rollout_sync": 128,
        "prompts_per_reference_sync": 9999999,
        "prompts_per_optim_step": 128,
        "prompts_per_forward_backward": 2,
        "completions_per_micro_batch": {768: 64, 1280: 16, 2560: 4},
        "max_concurrent_tasks": 32,
    },
    "verifier": {"num_workers": 4},
    "loss": {"name": "grpo", "beta": 0.001, "eps": 0.2},
    "data": {"dataset": "gsm8k", "split": "train"},
    "data_iter": {"system_prompt": "", "assistant_prefix": "", "skip_chat_template": True},
    "sampling": {"temperature": 1.0, "max_tokens": 2048, "n": 8, "logprobs": 0, "stop": ["Question:", "\n\n\n"]},
    "buffer": {"max_reads": 1, "maxsize": 0},
    "roles": [
        {
            "name": "trainer",
            "kind": "titan",
            "config": {
                "trainable": True,
                "optimizer": {"name": "AdamW", "lr": 1e-6, "eps": 1e-4},
                "lr_scheduler": {"warmup_steps": 50, "decay_ratio": 0.0},
                "training": {"seq_len": 2560, "dtype": "bfloat16"},
                "activation_checkpoint": {"mode": "selective"},
            },
        },
        {"name": "reference", "kind": "vllm", "config": {"data_parallel_size": 1}},
        {
            "name": "rollout",
            "kind": "vllm",
            "config": {"tensor_parallel_size": 1, "data_parallel_size": 3, "max_num_seqs": 64, "max_model_len": 2560},
        },
    ],
    "sync": {"chunk_mb": 100, "wiring": [{"src": "trainer", "dst": "rollout"}]},
}


def converted(changes: dict[str, Any] | None = None) -> ConvertedConfig:
    """CONFIG with changes, whose keys are paths such as `loss.name`."""
    tree = copy.deepcopy(CONFIG)
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = value
    return train_config(parse_settings(RlvrConfig, tree, "config.yaml"), Path("results/run"))


def test_the_shape_of_an_update_is_that_of_the_file() -> None:
    found = converted().config
    assert (found.model, found.seed, found.max_steps, found.max_staleness) == (MODEL, 7, 200, 1)
    assert (found.groups_per_step, found.group_size, found.num_samples_in_parallel) == (128, 8, 256)
    assert (found.optimizer.max_seq_len, found.optimizer.micro_token_budget) == (1280, 49152)
    assert (found.checkpoint_interval, found.rollout_timeout_s) == (20, 9999.0)


def test_the_optimizer_is_that_of_the_trainer() -> None:
    found = converted().config.optimizer
    assert (found.learning_rate, found.warmup_steps, found.lr_scheduler) == (1e-6, 50, "constant_with_warmup")
    assert (found.weight_decay, found.max_grad_norm) == (0.1, 1.0)
    assert (found.dtype, found.gradient_checkpointing) == ("bfloat16", True)


def test_the_engine_is_that_of_the_role_that_plays() -> None:
    prefix = "++policy_model.responses_api_models.local_vllm_model"
    assert f"{prefix}.engine_replicas=3" in converted().config.overrides
    assert f"{prefix}.extra_flags.max_num_seqs=64" in converted().config.overrides


def test_sampling_keeps_limits_and_stop_strings() -> None:
    params = converted({"sampling.top_k": 20, "sampling.top_p": 0.95}).config.responses_create_params
    assert (params["temperature"], params["top_p"], params["max_output_tokens"]) == (1.0, 0.95, 1024)
    assert orjson.loads(params["metadata"]["extra_body"]) == {"stop": ["Question:", "\n\n\n"], "top_k": 20}


def test_a_cut_distribution_gets_importance_weights_with_a_note() -> None:
    found = converted({"sampling.top_p": 0.95})
    assert found.config.loss.constrained_turns == "reweight"
    assert any("importance weights" in note for note in found.notes)
    assert converted().config.loss.constrained_turns == "refuse"


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({"name": "grpo", "beta": 0.001}, ("grpo", 0.2, 0.2, "group")),
        ({"name": "dapo"}, ("dapo", 0.2, 0.28, "group")),
        ({"name": "dapo", "eps_low": 0.1, "eps_high": 0.3}, ("dapo", 0.1, 0.3, "group")),
        ({"name": "drgrpo"}, ("dr_grpo", 1e9, 1e9, "none")),
        ({"name": "drgrpo", "eps": 0.2}, ("dr_grpo", 0.2, 0.2, "none")),
    ],
)
def test_losses_have_their_intervals(loss: Json, expected: tuple[str, float, float, str]) -> None:
    found = converted({"loss": loss}).config.loss.resolved
    assert (found.loss_type, found.epsilon, found.epsilon_high, found.scale) == expected


def test_dr_grpo_divides_by_the_constant_of_the_file() -> None:
    assert converted({"loss": {"name": "drgrpo"}}).config.loss.length_constant == 2048
    assert converted({"loss": {"name": "drgrpo", "C": 512}}).config.loss.length_constant == 512


def test_a_mixture_names_the_rows_and_the_agent_of_each_environment() -> None:
    data = {
        "dataset": "mixed",
        "mode": "sequential",
        "datasets": [{"name": "gsm8k", "weight": 0.25, "order": "s3://b/c.txt"}, {"name": "if_multi_constraints"}],
    }
    found = converted({"data": data}).config
    assert found.environments == ("gsm8k", "ifeval")
    first, second = read_mixture(found.data or {}, []).datasets
    # Without a path, the file is resources_servers/gsm8k/data/train.jsonl, and its absence names prepare.py.
    assert (first.path, first.split, first.order, first.agent_name) == (None, "train", "s3://b/c.txt", "gsm8k_agent")
    assert second.path == "resources_servers/ifeval/data/if_multi_constraints_train.jsonl"


def test_epochs_end_the_run_where_there_is_no_number_of_steps() -> None:
    found = converted({"training.max_steps": None, "training.num_epochs": 2}).config
    assert (found.max_steps, found.epochs) == (0, 2)


def test_what_is_done_in_another_way_is_noted() -> None:
    notes = " ".join(converted({"training.abort_in_flight": True}).notes)
    for text in ("abort_in_flight", "skip_chat_template", "optimizer.eps", "not used: run.port_start, verifier, sync"):
        assert text in notes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.resume_step": 100}, "output_dir"),
        ({"training.max_steps": None}, "training needs max_steps or num_epochs"),
        ({"training.alpha_sft": 0.001}, "supervised"),
        ({"sft_data": {"dataset": "sft_jsonl"}}, "supervised"),
        ({"buffer.max_reads": 2}, "one update"),
        ({"tokenizer.pretrained_model_name_or_path": "other"}, "own tokenizer"),
        ({"data_iter.system_prompt": "Think."}, "--system-prompt"),
        ({"training.prompts_per_reference_sync": 128}, "initial model"),
        ({"loss.name": "ppo"}, "loss.name"),
        ({"loss.eps": 0.0}, "loss.name: drgrpo"),
        ({"loss.C": 512}, "only drgrpo"),
        ({"data": {"dataset": "apps"}}, "dataset 'apps' .*gsm8k"),
        ({"data": {"dataset": "math", "level": [4, 5]}}, "level cannot"),
        ({"data": {"dataset": "mixed", "datasets": []}}, "list of datasets"),
        ({"data": {"dataset": "mixed", "datasets": [{"name": "gsm8k"}], "weights": [1]}}, "unknown keys weights"),
        ({"roles": []}, "expected one of each"),
        ({"training.steps": 5}, "'training.steps', .*'max_steps'"),
    ],
)
def test_what_cannot_be_done_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        converted(changes)


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("optimizer", {"name": "Adam", "lr": 1e-6}, "expected AdamW"),
        ("optimizer", {}, "no optimizer.lr"),
        ("lr_scheduler", {"decay_ratio": 0.5}, "decay_ratio is 0.5; expected 0"),
        ("training", {"dtype": "int8"}, "training.dtype is 'int8'"),
        ("optimizer", None, "no optimizer.lr"),
        ("training", "bf16", "training is 'bf16'"),
    ],
)
def test_a_trainer_that_cannot_be_had_is_refused(section: str, value: Json, message: str) -> None:
    roles = copy.deepcopy(CONFIG["roles"])
    roles[0]["config"][section] = value
    with pytest.raises(OperatorError, match=message):
        converted({"roles": roles})


def test_an_empty_section_of_a_role_has_the_defaults() -> None:
    roles = copy.deepcopy(CONFIG["roles"])
    roles[0]["config"] |= {"lr_scheduler": None, "activation_checkpoint": None, "parallelism": None}
    found = converted({"roles": roles}).config.optimizer
    assert (found.lr_scheduler, found.warmup_steps, found.gradient_checkpointing) == ("linear", 0, False)
