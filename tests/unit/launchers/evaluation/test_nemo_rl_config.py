"""Evaluation configs of NeMo-RL become evaluations of this stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.launchers.evaluation.nemo_rl import load_tree, parse, prepare_rows, to_eval_config
from rollyard.records.errors import OperatorError

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"


def tree(**sections: dict[str, Any]) -> dict[str, Any]:
    base: dict[str, Any] = {
        "generation": {"model_name": "Qwen/Qwen2.5-Math-1.5B-Instruct", "vllm_cfg": {"max_model_len": 2048}},
        "data": {"dataset_name": "openai/gsm8k"},
        "eval": {},
    }
    return {name: {**base.get(name, {}), **sections.get(name, {})} for name in {**base, **sections}}


def test_references_between_sections_are_resolved() -> None:
    config = parse(
        tree(
            generation={"model_name": "a/b", "max_new_tokens": "${generation.vllm_cfg.max_model_len}"},
            tokenizer={"name": "${generation.model_name}"},
        ),
        "eval.yaml",
    )
    assert config.generation.max_new_tokens == 2048
    assert config.tokenizer.name == "a/b"


def test_a_file_inherits_from_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "generation: {model_name: a/b, temperature: 0.5}\ndata: {dataset_name: gsm8k}\n"
    )
    (tmp_path / "child.yaml").write_text("defaults: base.yaml\ngeneration: {temperature: 0.7}\n")
    config = parse(load_tree(tmp_path / "child.yaml"), "child.yaml")
    assert (config.generation.model_name, config.generation.temperature) == ("a/b", 0.7)


def test_a_file_that_inherits_from_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults: b.yaml\ngeneration: {}\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\ngeneration: {}\n")
    with pytest.raises(OperatorError, match="inherits from itself"):
        load_tree(tmp_path / "a.yaml")


def test_an_empty_section_has_its_defaults() -> None:
    assert parse({**tree(), "cluster": None}, "eval.yaml").cluster.gpus_per_node == 1


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"eval": {"num_tests_per_prompt": 2, "k_value": 4}}, "at least eval.k_value, 4"),
        ({"eval": {"num_tests_per_prompt": 8}}, "all responses are the same"),
        ({"eval": {"num_tests_per_prompt": 8}, "generation": {"temperature": 1.0, "top_k": 1}}, "all responses"),
        ({"generation": {"backend": "megatron"}}, "backend"),
        ({"eval": {"metric": "best@k"}}, "metric"),
        ({"generation": {"temperature": -1}}, "temperature"),
    ],
)
def test_a_sampling_mistake_is_refused(sections: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        parse(tree(**sections), "eval.yaml")


def test_keys_without_an_effect_are_listed() -> None:
    config = parse({**tree(generation={"model_name": "a/b", "colocated": {"enabled": True}}), "env": {}}, "eval.yaml")
    assert config.unused == ["env", "generation.colocated"]


def test_a_misspelt_key_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(OperatorError, match="'temperature'"):
        parse(tree(generation={"model_name": "a/b", "temperatur": 0.5}), "eval.yaml")


def test_the_settings_reach_the_evaluation(tmp_path: Path) -> None:
    config = parse(
        tree(
            generation={
                "model_name": "a/b",
                "temperature": 0.6,
                "top_p": 0.95,
                "top_k": 20,
                "max_new_tokens": 512,
                "vllm_cfg": {"tensor_parallel_size": 4, "max_model_len": 4096, "enforce_eager": True},
            },
            eval={"num_tests_per_prompt": 16, "seed": 7},
        ),
        "eval.yaml",
    )
    found = to_eval_config(config, tmp_path / "rows.jsonl", tmp_path)
    assert found.model == "vllm/a/b"
    assert found.environments == ("gsm8k",)
    assert found.num_repeats == 16
    assert found.responses_create_params == {"temperature": 0.6, "top_p": 0.95, "max_output_tokens": 512}
    assert found.overrides == ("++policy_model.responses_api_models.local_vllm_model.extra_body.top_k=20",)
    assert (found.vllm.tensor_parallel_size, found.vllm.dtype) == (4, "bfloat16")
    assert found.vllm.args == ("--seed", "7", "--enforce-eager")


def test_a_token_limit_of_the_whole_context_is_left_to_the_engine(tmp_path: Path) -> None:
    config = parse(tree(generation={"model_name": "a/b", "max_new_tokens": 2048}), "eval.yaml")
    assert "max_output_tokens" not in to_eval_config(config, tmp_path / "rows.jsonl", tmp_path).responses_create_params


def test_an_unknown_dataset_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    config = parse(tree(data={"dataset_name": "openai/gsm8kk"}), "eval.yaml")
    with pytest.raises(OperatorError, match="openai/gsm8k"):
        prepare_rows(config.data, tmp_path / "rows.jsonl")


def test_rows_come_from_a_local_clone_with_the_prompt_template(tmp_path: Path) -> None:
    clone = tmp_path / "clones" / "openai" / "gsm8k"
    clone.mkdir(parents=True)
    (clone / "test.jsonl").write_bytes((DATA / "gsm8k" / "test.jsonl").read_bytes())
    (tmp_path / "cot.txt").write_text("Think first.\n{}\n\nLet's think step-by-step")
    data = {"local_root": str(tmp_path / "clones"), "prompt_file": str(tmp_path / "cot.txt"), "limit": 3}
    config = parse(tree(data={"dataset_name": "gsm8k", **data}), "eval.yaml")
    rows = [orjson.loads(line) for line in prepare_rows(config.data, tmp_path / "rows.jsonl").read_bytes().splitlines()]
    assert len(rows) == 3
    (message,) = rows[0]["responses_create_params"]["input"]
    assert message == {"role": "user", "content": f"Think first.\n{rows[0]['question']}\n\nLet's think step-by-step"}


def test_prepared_rows_are_not_prepared_again(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    config = parse(tree(data={"local_root": str(tmp_path / "absent")}), "eval.yaml")
    assert prepare_rows(config.data, tmp_path / "rows.jsonl").read_text() == "{}\n"
