"""A YAML file of checkpoints and benchmarks becomes runs of ng_lm_eval."""

from __future__ import annotations

import pytest

from rollyard.cli.lm_eval import LmEvalOptions
from rollyard.cli.options import read_options
from rollyard.launchers.evaluation.lm_eval import BenchmarkConfig
from rollyard.records.errors import OperatorError


def config(**values: object) -> BenchmarkConfig:
    return BenchmarkConfig.model_validate({"benchmarks": [{"task": "gsm8k", "num_fewshot": 8}], **values})


def options(arguments: list[str]) -> LmEvalOptions:
    return read_options(LmEvalOptions, arguments)[0]


def test_each_checkpoint_is_one_run() -> None:
    checkpoints = [{"name": "base", "path": "Qwen/Qwen3-1.7B-Base"}, {"name": "step_40", "path": "/ckpt/it's 40, new"}]
    first, second = (options(one) for one in config(checkpoints=checkpoints).commands())
    assert (first.model, first.name, first.benchmarks) == ("Qwen/Qwen3-1.7B-Base", "base", ("gsm8k:8",))
    assert (second.model, second.name) == ("/ckpt/it's 40, new", "step_40")


def test_settings_of_vllm_and_token_limits_reach_lm_eval() -> None:
    vllm = {"tensor_parallel_size": 8, "max_model_len": 4096}
    (found,) = config(
        checkpoints=[{"name": "a", "path": "a/b"}], vllm=vllm, max_gen_toks={"default": 1024}, seed=7
    ).commands()
    assert (options(found).model_args, options(found).max_gen_toks, options(found).seed) == (vllm, {"default": 1024}, 7)


def test_a_watched_folder_is_one_run_after_the_checkpoints() -> None:
    found = config(
        checkpoints=[{"name": "a", "path": "a/b"}], watch={"s3_prefix": "s3://bucket/run", "poll_interval_s": 60}
    ).commands()
    assert options(found[-1]).watch_path == "s3://bucket/run"
    assert options(found[-1]).poll_interval_s == 60


def test_a_path_on_the_command_line_replaces_that_of_the_file() -> None:
    (found,) = config(watch={"local_dir": "old"}).commands(watch_path="new")
    assert options(found).watch_path == "new"


def test_a_disabled_watch_without_checkpoints_has_nothing_to_evaluate() -> None:
    with pytest.raises(OperatorError, match="nothing"):
        config(watch={"enable": False, "local_dir": "old"}).commands()
