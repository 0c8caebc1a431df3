"""The config of one evaluation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rollyard.launchers.evaluation.nemo_rl import load_tree
from rollyard.launchers.slurm.launch_planner import as_yaml, merge, read_config, validate
from rollyard.launchers.slurm.sweep import Setting
from rollyard.records.errors import OperatorError
from tests.support.launches import CONFIG

TREE: dict[str, Any] = {
    "generation": {"model_name": "m", "temperature": 0.0},
    "tokenizer": {"name": "${generation.model_name}"},
}


def read_in_job(path: Path, text: str) -> Any:
    """Read the file as `ng_eval` does inside the job."""
    path.write_text(text)
    return OmegaConf.to_container(load_tree(path), resolve=True)


def test_any_value_arrives_in_the_job_as_it_was_given(tmp_path: Path) -> None:
    """B5: a quote, a space or $(...) in a value was expanded on the login node, or broke the command."""
    rng = random.Random(1)
    alphabet = "${}\\'\"\n\t :#-[],&*!|>%@`ab1.\r\x85é🎉"
    values: list[Any] = ["".join(rng.choice(alphabet) for _ in range(rng.randint(0, 10))) for _ in range(300)]
    values += ["$(touch x)", "${x}", "\\${x}", "\\\\${oc.env:HOME}", "`id`; rm", "a, b", "\u2028", "007", "1e-5", "yes"]
    values += [1e-5, None, True, [], {}, [[1, [None]], {"a": "${b}"}], -0.0, 10**20]
    merged = merge(TREE, [Setting("generation.stop", values, adds=True)], "test")
    found = read_in_job(tmp_path / "eval.yaml", as_yaml(merged))
    assert found["generation"]["stop"] == values


def test_references_of_the_config_are_resolved_with_the_values_that_override_it() -> None:
    merged = merge(TREE, [Setting("generation.model_name", "$(x) ${y}")], "test")
    assert merged["tokenizer"]["name"] == "$(x) ${y}"


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("generation.temprature", "did you mean 'generation.temperature'"),
        ("qos", "unknown key 'qos'"),
        ("generation.temperature.x", "unknown key"),
    ],
)
def test_a_key_that_nothing_reads_is_refused(key: str, problem: str) -> None:
    with pytest.raises(OperatorError, match=problem):
        merge(TREE, [Setting(key, 1)], "test")


def test_a_key_that_nothing_reads_can_be_added() -> None:
    assert merge(TREE, [Setting("mine.x", 1, adds=True)], "test")["mine"] == {"x": 1}


@pytest.mark.parametrize("key", ["data.dataset_key", "generation.vllm_cfg.tensor_parallel_size", "eval.k_value"])
def test_a_known_key_need_not_be_in_the_config(key: str) -> None:
    merge(TREE, [Setting(key, 1)], "test")


def test_a_key_below_a_value_names_the_value() -> None:
    with pytest.raises(OperatorError, match=r"generation.temperature is .* 0.0; set generation.temperature"):
        merge(TREE, [Setting("generation.temperature.x", 1, adds=True)], "test")


def test_a_null_section_counts_as_empty() -> None:
    """B8: an empty `cluster:` ended with an AttributeError."""
    assert merge({**TREE, "cluster": None}, [Setting("cluster.num_nodes", 2)], "test")["cluster"] == {"num_nodes": 2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "is empty"), ("a: [", "cannot be read as YAML"), ("- 1", "contains a list"), (None, "does not exist")],
)
def test_a_config_that_cannot_be_read_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    """B8: a missing or unparsable config was only warned about and read as an empty one."""
    path = tmp_path / "eval.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OperatorError, match=problem):
        read_config(path)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("generation.temperature", "hot", "generation.temperature"),
        ("eval.num_tests_per_prompt", 4, "all responses are the same"),
        ("data.dataset_name", "openai/gsm9k", "did you mean 'openai/gsm8k'"),
    ],
)
def test_what_the_job_would_refuse_is_refused_before_the_submission(
    tmp_path: Path, key: str, value: Any, problem: str
) -> None:
    (tmp_path / "eval.yaml").write_text(CONFIG)
    settings = [Setting("generation.model_name", "m"), Setting(key, value)]
    with pytest.raises(OperatorError, match=problem):
        validate(merge(read_config(tmp_path / "eval.yaml"), settings, "eval"), "eval")


def test_a_config_of_ng_eval_works_too() -> None:
    validate(merge({"model": "builtin", "environments": ["grl_sokoban"]}, [Setting("num_repeats", 4)], "eval"), "eval")
