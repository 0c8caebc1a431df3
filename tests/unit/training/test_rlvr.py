"""Training configs of rlvr-experiments become TrainConfigs, or are refused with a clear line."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.datasets.dataset import read_mixture
from rollyard.services.server.settings import parse_settings
from rollyard.training.rlvr import ConvertedConfig, RlvrConfig, train_config

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


ENGINE = "++policy_model.responses_api_models.local_vllm_model"


def test_the_run_is_that_of_the_file() -> None:
    config = converted().config
    assert config.model_dump(exclude={"overrides", "data", "output_dir"}, exclude_defaults=True) == {
        "model": MODEL,
        "environments": ("gsm8k",),
        "seed": 7,
        "max_steps": 200,
        "groups_per_step": 128,
        "responses_create_params": {
            "temperature": 1.0,
            "max_output_tokens": 1024,
            "metadata": {"extra_body": '{"stop":["Question:","\\n\\n\\n"]}'},
        },
        "num_samples_in_parallel": 256,
        "rollout_timeout_s": 9999.0,
        "max_staleness": 1,
        "loss": {"epsilon": 0.2, "epsilon_high": 0.2, "beta": 0.001},
        "optimizer": {
            "warmup_steps": 50,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
            "max_seq_len": 1280,
            "micro_token_budget": 49152,
            "dtype": "bfloat16",
            "gradient_checkpointing": True,
        },
        "checkpoint_interval": 20,
    }
    assert {f"{ENGINE}.engine_replicas=3", f"{ENGINE}.extra_flags.max_num_seqs=64"} <= {*config.overrides}


def test_a_cut_distribution_gets_importance_weights_with_a_note() -> None:
    found = converted({"sampling.top_p": 0.95, "sampling.top_k": 20})
    assert found.config.loss.constrained_turns == "reweight"
    assert found.config.responses_create_params["top_p"] == 0.95
    assert orjson.loads(found.config.responses_create_params["metadata"]["extra_body"])["top_k"] == 20
    assert any("importance weights" in note for note in found.notes)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ({"name": "grpo", "beta": 0.001}, ("grpo", 0.2, 0.2, "group", None)),
        ({"name": "dapo"}, ("dapo", 0.2, 0.28, "group", None)),
        ({"name": "dapo", "eps_low": 0.1, "eps_high": 0.3}, ("dapo", 0.1, 0.3, "group", None)),
        ({"name": "drgrpo"}, ("dr_grpo", 1e9, 1e9, "none", 2048)),
        ({"name": "drgrpo", "eps": 0.2, "C": 512}, ("dr_grpo", 0.2, 0.2, "none", 512)),
    ],
)
def test_losses_have_their_intervals_and_dr_grpo_its_constant(
    loss: Json, expected: tuple[str, float, float, str, int | None]
) -> None:
    settings = converted({"loss": loss}).config.loss
    found = settings.resolved
    assert (found.loss_type, found.epsilon, found.epsilon_high, found.scale, settings.length_constant) == expected


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


def trainer_with(**sections: Any) -> ConvertedConfig:
    roles = copy.deepcopy(CONFIG["roles"])
    roles[0]["config"] |= sections
    return converted({"roles": roles})


@pytest.mark.parametrize(
    ("section", "value", "message"),
    [
        ("optimizer", {"name": "Adam", "lr": 1e-6}, "expected AdamW"),
        ("optimizer", None, "no optimizer.lr"),
        ("lr_scheduler", {"decay_ratio": 0.5}, "decay_ratio is 0.5; expected 0"),
        ("training", {"dtype": "int8"}, "training.dtype is 'int8'"),
        ("training", "bf16", "training is 'bf16'"),
    ],
)
def test_a_trainer_that_cannot_be_had_is_refused(section: str, value: Json, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        trainer_with(**{section: value})


def test_an_empty_section_of_a_role_has_the_defaults() -> None:
    found = trainer_with(lr_scheduler=None, activation_checkpoint=None, parallelism=None).config.optimizer
    assert (found.lr_scheduler, found.warmup_steps, found.gradient_checkpointing) == ("linear", 0, False)
