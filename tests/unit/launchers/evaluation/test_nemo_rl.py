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

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"
TEXT = """
generation: {model_name: a/b, temperature: 0.6, vllm_cfg: {max_model_len: 2048}}
tokenizer: {name: "${generation.model_name}"}
data: {dataset_name: openai/gsm8k}
eval: {num_tests_per_prompt: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "eval.yaml").write_text(TEXT)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    return tmp_path / "eval.yaml"


def read(file: Path, *overrides: str, servers: tuple[str, ...] = ()) -> NemoRlRun:
    found = read_nemo_rl(file, parse_overrides(overrides), servers)
    assert found is not None
    return found


def parsed(**sections: dict[str, Any] | None) -> NemoRlConfig:
    base: dict[str, Any] = {"generation": {"model_name": "a/b"}, "data": {"dataset_name": "openai/gsm8k"}}
    changed = {name: None if more is None else {**base.get(name, {}), **more} for name, more in sections.items()}
    return parse(base | changed, "eval.yaml")


def test_keys_of_ng_eval_stand_beside_the_sections_and_may_refer_to_them(file: Path) -> None:
    found = read(
        file, "output_dir='results/\\${x}'", "shard=2/4", "max_attempts=1", "generation.model_name=/ckpt/step 40"
    )
    assert (found.config.tokenizer.name, found.eval_config.model) == ("/ckpt/step 40", "vllm//ckpt/step 40")
    assert (found.eval_config.shard, found.eval_config.max_attempts, found.config.unused) == ("2/4", 1, [])
    assert found.eval_config.output_dir == Path("results/${x}")  # escaped
    file.write_text(TEXT + "output_dir: results/${generation.model_name}\nvllm: {args: ['${tokenizer.name}']}\n")
    config = read(file).eval_config
    assert config.output_dir == Path("results/a/b") and config.vllm.args[-1] == "a/b"


def test_settings_of_vllm_complement_those_of_the_generation_section(file: Path) -> None:
    found = read(file, "vllm.command=[/opt/vllm]", "vllm.dtype=float16", "vllm.args=[--x]").eval_config.vllm
    assert (found.command, found.dtype, found.max_model_len) == (("/opt/vllm",), "float16", 2048)
    assert found.args == ("--seed", "42", "--x") and found.gpu_memory_utilization == 0.9
    with pytest.raises(OperatorError, match=r"vllm.*'comand'.*command"):
        read(file, "vllm.comand=[/opt/vllm]")


def test_the_stored_config_is_read_back_as_the_same_evaluation(file: Path, tmp_path: Path) -> None:
    servers = ("a.responses_api_agents.b.max_steps=3",)
    found = read(file, "generation.top_k=5", "output_dir=results/x", servers=servers)
    assert found.eval_config.overrides[-1:] == servers and len(found.eval_config.overrides) == 2
    (tmp_path / "eval_config.yaml").write_text(dump_settings(found.tree))
    again = read(tmp_path / "eval_config.yaml")
    assert (again.config, again.eval_config) == (found.config, found.eval_config)


def test_a_file_of_rows_is_used_where_it_is_and_a_dry_run_writes_nothing(file: Path, tmp_path: Path) -> None:
    rows = str(tmp_path / "rows.jsonl")
    found = read(file, f"output_dir={tmp_path / 'out'}", f"data.dataset_name={rows}")
    with found.prepared_elsewhere() as prepared:
        assert prepared.input_jsonl_fpath == found.eval_config.input_jsonl_fpath == rows
    assert not (tmp_path / "out").exists()


def config(tmp_path: Path, **evaluation: Any) -> NemoRlConfig:
    given = {"num_tests_per_prompt": 4, "save_path": str(tmp_path / "saved"), **evaluation}
    return parsed(generation={"temperature": 1.0}, eval=given)


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    """Two tasks with four repeats: one and two of them solved."""
    return write_rollouts(tmp_path / "rollouts.jsonl")


def write_rollouts(path: Path, answers: tuple[str, str] | None = None) -> Path:
    output = [{"type": "message", "content": [{"type": "output_text", "text": "an answer"}]}]
    rows = [
        {
            "responses_create_params": {"input": [{"role": "user", "content": f"question {task}"}]},
            "response": {"output": output},
            "reward": float(reward),
            "success": bool(reward),
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
            "agent_ref": {"name": "gsm8k_agent"},
            **({} if answers is None else {"extracted_answer": answers[reward]}),
        }
        for task, values in enumerate(([1, 0, 0, 0], [1, 1, 0, 0]))
        for repeat, reward in enumerate(values)
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path


def test_the_block_ends_with_pass_at_k(tmp_path: Path, rollouts: Path) -> None:
    # 1 - C(3,2)/C(4,2) = 1/2 and 1 - C(2,2)/C(4,2) = 5/6
    text = summary(config(tmp_path, k_value=2), rollouts)
    assert "metric=pass@2 num_tests_per_prompt=4" in text
    assert "score=0.6667 (1.333333333/2)" in text and text.count("=" * 60) == 2
    with pytest.raises(RunError, match=r"pass@8"):  # no task has 8 rollouts
        summary(config(tmp_path, num_tests_per_prompt=8, k_value=8), rollouts)


def test_cons_at_k_is_the_share_of_subsets_whose_most_common_answer_is_right(tmp_path: Path, rollouts: Path) -> None:
    answered = write_rollouts(tmp_path / "answered.jsonl", ("17", "18"))
    # Of three rollouts, two or more of the first task are always wrong; the second has two right ones in half of them.
    text = summary(config(tmp_path, metric="cons@k", k_value=3), answered)
    assert "metric=cons@3" in text and "score=0.2500 (0.5/2)" in text
    with pytest.raises(RunError, match="extracted_answer"):
        summary(config(tmp_path, metric="cons@k", k_value=3), rollouts)


def test_the_saved_files_have_the_keys_of_nemo_rl(tmp_path: Path, rollouts: Path) -> None:
    settings, data = save(config(tmp_path), rollouts)
    assert orjson.loads(settings.read_bytes())["num_tests_per_prompt"] == 4
    samples = orjson.loads(data.read_bytes())["evaluation_data"]
    assert len(samples) == 8
    assert set(samples[0]) == {"prompt", "response", "reward", "message_log", "extra_env_info", "sample_index"}
    assert (samples[0]["prompt"], samples[0]["response"], samples[5]["sample_index"]) == ("question 0", "an answer", 1)


def test_a_file_inherits_from_its_defaults_but_not_from_itself(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("generation: {model_name: a/b, temperature: 0.5}\ndata: {dataset_name: gsm8k}")
    (tmp_path / "child.yaml").write_text("defaults: base.yaml\ngeneration: {temperature: 0.7}\n")
    found = parse(load_tree(tmp_path / "child.yaml"), "child.yaml").generation
    assert (found.model_name, found.temperature) == ("a/b", 0.7)
    (tmp_path / "base.yaml").write_text("defaults: child.yaml\ngeneration: {}\n")
    with pytest.raises(OperatorError, match="inherits from itself"):
        load_tree(tmp_path / "child.yaml")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"eval": {"num_tests_per_prompt": 2, "k_value": 4}}, "at least eval.k_value, 4"),
        ({"eval": {"num_tests_per_prompt": 8}}, "all responses are the same"),
        ({"eval": {"num_tests_per_prompt": 8}, "generation": {"temperature": 1.0, "top_k": 1}}, "all responses"),
        ({"generation": {"backend": "megatron"}}, "backend"),
        ({"eval": {"metric": "best@k"}}, "metric"),
        ({"generation": {"temperature": -1}}, "temperature"),
        ({"generation": {"temperatur": 0.5}}, "'temperature'"),
    ],
)
def test_a_mistake_is_refused(sections: dict[str, dict[str, Any]], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        parsed(**sections)


def test_keys_without_an_effect_are_listed() -> None:
    assert parsed(generation={"colocated": {"enabled": True}}, env={}).unused == ["env", "generation.colocated"]


def test_the_settings_reach_the_evaluation(tmp_path: Path) -> None:
    vllm = {"tensor_parallel_size": 4, "max_model_len": 4096, "enforce_eager": True}
    sampling = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 512}
    given = parsed(generation={**sampling, "vllm_cfg": vllm}, eval={"num_tests_per_prompt": 16, "seed": 7})
    found = to_eval_config(given, tmp_path / "rows.jsonl", tmp_path)
    assert (found.model, found.environments, found.num_repeats) == ("vllm/a/b", ("gsm8k",), 16)
    assert found.responses_create_params == {"temperature": 0.6, "top_p": 0.95, "max_output_tokens": 512}
    assert found.overrides == ("++policy_model.responses_api_models.local_vllm_model.extra_body.top_k=20",)
    assert (found.vllm.tensor_parallel_size, found.vllm.dtype) == (4, "bfloat16")
    assert found.vllm.args == ("--seed", "7", "--enforce-eager")
    whole = to_eval_config(parsed(generation={"max_new_tokens": 2048}), tmp_path / "rows.jsonl", tmp_path)
    assert "max_output_tokens" not in whole.responses_create_params  # left to the engine, as the prompt needs room


def test_rows_come_from_a_local_clone_with_the_prompt_template(tmp_path: Path) -> None:
    clone = tmp_path / "clones/openai/gsm8k"
    clone.mkdir(parents=True)
    (clone / "test.jsonl").write_bytes((DATA / "gsm8k/test.jsonl").read_bytes())
    (tmp_path / "cot.txt").write_text("Think first.\n{}\n\nLet's think step-by-step")
    data = {"local_root": str(tmp_path / "clones"), "prompt_file": str(tmp_path / "cot.txt"), "limit": 3}
    path = prepare_rows(parsed(data={"dataset_name": "gsm8k", **data}).data, tmp_path / "rows.jsonl")
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert len(rows) == 3
    (message,) = rows[0]["responses_create_params"]["input"]
    assert message == {"role": "user", "content": f"Think first.\n{rows[0]['question']}\n\nLet's think step-by-step"}


@pytest.mark.usefixtures("file")
def test_prepared_rows_are_not_prepared_again(tmp_path: Path) -> None:
    given = parsed(data={"local_root": str(tmp_path / "absent")})
    assert prepare_rows(given.data, tmp_path / "rows.jsonl").read_text() == "{}\n"
