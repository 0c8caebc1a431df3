"""ng_eval with a config file of NeMo-RL: its keys, the evaluation it runs, and the results it collects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.launchers.evaluation.nemo_rl import (
    NemoRlConfig,
    NemoRlRun,
    load_tree,
    parse,
    prepare_rows,
    read_nemo_rl,
    save,
    summary,
    to_eval_config,
)
from rollyard.records.errors import OperatorError, RunError
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.settings_file import dump_settings

TEXT = """
generation: {model_name: a/b, temperature: 0.6, vllm_cfg: {max_model_len: 2048}}
tokenizer: {name: "${generation.model_name}"}
data: {dataset_name: openai/gsm8k}
eval: {num_tests_per_prompt: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "eval.yaml"
    path.write_text(TEXT)
    return path


def read(file: Path, *overrides: str) -> NemoRlRun:
    found = read_nemo_rl(file, parse_overrides(overrides))
    assert found is not None
    return found


def test_references_see_the_overrides(file: Path) -> None:
    found = read(file, "generation.model_name=/ckpt/step 40")
    assert found.config.tokenizer.name == "/ckpt/step 40"
    assert found.eval_config.model == "vllm//ckpt/step 40"


def test_keys_of_ng_eval_stand_beside_the_sections(file: Path) -> None:
    found = read(file, "output_dir=results/x", "shard=2/4", "max_attempts=1")
    assert found.eval_config.output_dir == Path("results/x")
    assert (found.eval_config.shard, found.eval_config.max_attempts) == ("2/4", 1)
    assert found.config.unused == []


def test_keys_of_ng_eval_may_refer_to_the_sections(file: Path) -> None:
    file.write_text(TEXT + "output_dir: results/${generation.model_name}\nvllm: {args: ['${tokenizer.name}']}\n")
    found = read(file).eval_config
    assert found.output_dir == Path("results/a/b") and found.vllm.args[-1] == "a/b"


def test_an_escaped_reference_in_the_folder_is_text(file: Path) -> None:
    assert read(file, "output_dir='results/\\${x}'").eval_config.output_dir == Path("results/${x}")


def test_settings_of_vllm_complement_those_of_the_generation_section(file: Path) -> None:
    found = read(file, "vllm.command=[/opt/vllm]", "vllm.dtype=float16", "vllm.args=[--x]").eval_config.vllm
    assert (found.command, found.dtype, found.max_model_len) == (("/opt/vllm",), "float16", 2048)
    assert found.args == ("--seed", "42", "--x") and found.gpu_memory_utilization == 0.9


def test_an_unknown_setting_of_vllm_is_refused(file: Path) -> None:
    with pytest.raises(OperatorError, match=r"vllm.*'comand'.*command"):
        read(file, "vllm.comand=[/opt/vllm]")


def test_the_stored_config_is_read_back_as_the_same_evaluation(file: Path, tmp_path: Path) -> None:
    servers = ("a.responses_api_agents.b.max_steps=3",)
    found = read_nemo_rl(file, parse_overrides(["generation.top_k=5", "output_dir=results/x"]), servers)
    assert found is not None and found.eval_config.overrides[-1:] == servers and len(found.eval_config.overrides) == 2
    stored = tmp_path / "eval_config.yaml"
    stored.write_text(dump_settings(found.tree))
    again = read_nemo_rl(stored, [])
    assert again is not None and (again.config, again.eval_config) == (found.config, found.eval_config)


def test_rows_prepared_for_a_dry_run_are_elsewhere_and_removed(file: Path, tmp_path: Path) -> None:
    found = read(file, f"output_dir={tmp_path / 'out'}", f"data.dataset_name={write_rows(tmp_path)}")
    with found.prepared_elsewhere() as prepared:
        assert prepared.input_jsonl_fpath == str(tmp_path / "rows.jsonl")
    assert not (tmp_path / "out").exists()


def write_rows(folder: Path) -> Path:
    (folder / "rows.jsonl").write_text("{}\n")
    return folder / "rows.jsonl"


def test_a_config_of_ng_eval_is_not_one_of_nemo_rl(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("model: builtin\noutput_dir: results/x\n")
    assert read_nemo_rl(path, []) is None


def test_a_file_of_rows_is_used_where_it_is(file: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    assert read(file, f"data.dataset_name={rows}").eval_config.input_jsonl_fpath == str(rows)


def config(tmp_path: Path, **evaluation: Any) -> NemoRlConfig:
    return parse(
        {
            "generation": {"model_name": "a/b", "temperature": 1.0},
            "data": {"dataset_name": "openai/gsm8k"},
            "eval": {"num_tests_per_prompt": 4, "save_path": str(tmp_path / "saved"), **evaluation},
        },
        "eval.yaml",
    )


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    """Two tasks with four repeats: one and two of them solved."""
    path = tmp_path / "rollouts.jsonl"
    rewards = {0: [1, 0, 0, 0], 1: [1, 1, 0, 0]}
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"question {task}"}]},
            "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": "an answer"}]}]},
            "reward": float(reward),
            "success": bool(reward),
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
            "agent_ref": {"name": "gsm8k_agent"},
        }
        for task, values in rewards.items()
        for repeat, reward in enumerate(values)
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_the_block_ends_with_pass_at_k(tmp_path: Path, rollouts: Path) -> None:
    # 1 - C(3,2)/C(4,2) = 1/2 and 1 - C(2,2)/C(4,2) = 5/6
    text = summary(config(tmp_path, k_value=2), rollouts)
    assert "metric=pass@2 num_tests_per_prompt=4" in text
    assert "score=0.6667 (1.333333333/2)" in text
    assert text.count("=" * 60) == 2


def test_cons_at_k_is_the_share_of_subsets_whose_most_common_answer_is_right(tmp_path: Path, rollouts: Path) -> None:
    rows = [orjson.loads(line) for line in rollouts.read_bytes().splitlines()]
    with_answers = [{**row, "extracted_answer": "18" if row["success"] else "17"} for row in rows]
    answered = tmp_path / "answered.jsonl"
    answered.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in with_answers))
    # Of three rollouts, two or more of the first task are always wrong; the second has two right ones in half of them.
    text = summary(config(tmp_path, metric="cons@k", k_value=3), answered)
    assert "metric=cons@3" in text and "score=0.2500 (0.5/2)" in text
    with pytest.raises(RunError, match="extracted_answer"):
        summary(config(tmp_path, metric="cons@k", k_value=3), rollouts)


def test_a_k_that_no_task_reaches_is_an_error(tmp_path: Path, rollouts: Path) -> None:
    with pytest.raises(RunError, match=r"pass@8"):
        summary(config(tmp_path, num_tests_per_prompt=8, k_value=8), rollouts)


def test_the_saved_files_have_the_keys_of_nemo_rl(tmp_path: Path, rollouts: Path) -> None:
    settings, data = save(config(tmp_path), rollouts)
    assert orjson.loads(settings.read_bytes())["num_tests_per_prompt"] == 4
    samples = orjson.loads(data.read_bytes())["evaluation_data"]
    assert len(samples) == 8
    assert set(samples[0]) == {"prompt", "response", "reward", "message_log", "extra_env_info", "sample_index"}
    assert (samples[0]["prompt"], samples[0]["response"], samples[5]["sample_index"]) == ("question 0", "an answer", 1)


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
