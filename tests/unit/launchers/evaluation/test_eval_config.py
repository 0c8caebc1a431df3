"""Reading the config of an evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig, load_eval_config
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.settings_file import dump_settings


def load(folder: Path, *overrides: str, path: str | None = "x.yaml", text: str | None = None) -> EvalConfig:
    if text is not None:
        (folder / "x.yaml").write_text(text)
    return load_eval_config(path, parse_overrides(overrides), [folder, INSTALLED])


def test_a_file_is_found_in_the_folder_its_configs_and_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/x.yaml").write_text("model: builtin\noutput_dir: out")
    assert load(tmp_path).output_dir == load(tmp_path, path="configs/x.yaml").output_dir == Path("out")
    for shipped in ("sokoban_eval.yaml", "qwen3_4b_eval.yaml"):
        assert load(tmp_path, path=shipped).num_repeats == 16


def test_overrides_replace_values_and_merge_into_mappings(tmp_path: Path) -> None:
    sampling = "responses_create_params: {temperature: 0.8, top_p: 0.9}"
    overrides = ("vllm.port=2", "+responses_create_params.temperature=0", "num_repeats=3", "+output_dir=b")
    config = load(tmp_path, *overrides, text=f"output_dir: out\nvllm: {{port: 1, dtype: float16}}\n{sampling}")
    assert (config.vllm.port, config.vllm.dtype, config.num_repeats) == (2, "float16", 3)
    assert config.responses_create_params == {"temperature": 0, "top_p": 0.9}
    assert load(tmp_path, "~vllm.port").vllm.port is None


def test_text_keeps_its_spelling_and_a_single_value_becomes_a_list(tmp_path: Path) -> None:
    config = load(tmp_path, "model=007", "environments=gsm8k", "vllm.args=--x", "output_dir=1e3", path=None)
    assert (config.model, config.environments, config.vllm.args) == ("007", ("gsm8k",), ("--x",))
    assert str(config.output_dir) == "1e3"


def test_values_may_refer_to_each_other_and_to_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEP", "7")
    text = "model: vllm/ckpt\noutput_dir: out/${model}/${oc.env:STEP}"
    assert load(tmp_path, text=text).output_dir == Path("out/vllm/ckpt/7")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("output_dir: out\nnum_repeat: 3", "did you mean 'num_repeats'"),
        ("output_dir: out\nvllm: {prot: 3}", "'port'"),
        ("output_dir: ${oc.env:UNSET_VARIABLE_7}", "UNSET_VARIABLE_7"),
    ],
)
def test_an_unknown_key_or_variable_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(OperatorError, match=named):
        load(tmp_path, text=text)


@pytest.mark.parametrize("text", ["${oc.env:KEY}", "a\\${b}", "plain"])
def test_a_stored_value_stays_text_even_if_it_looks_like_a_reference(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text=dump_settings({"output_dir": "x", "overrides": [text]})).overrides == (text,)
