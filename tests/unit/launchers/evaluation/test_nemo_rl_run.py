"""ng_eval reads a config file of NeMo-RL with overrides of both kinds of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.launchers.evaluation.nemo_rl import NemoRlRun, read_nemo_rl
from rollyard.records.errors import OperatorError
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
