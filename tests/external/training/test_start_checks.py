"""Checks of a training run that read the model, and start nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.io.search_path import INSTALLED
from rollyard.training.run.settings_check import settings_yaml
from rollyard.training.run.start_checks import check
from rollyard.training.run.train_plan import TrainPlan
from rollyard.training.train_config import TrainConfig
from tests.support.stacks import colocated, load_config
from tests.unit.training.run.model_folder import model_folder

ROWS = INSTALLED / "resources_servers/gsm8k/data/example.jsonl"
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def config_of(folder: Path, **keys: Any) -> TrainConfig:
    given = {"model": "model", "environments": ["gsm8k"], "input_jsonl_fpath": str(ROWS), "output_dir": folder / "out"}
    return TrainConfig.model_validate({**given, **keys})


async def plan_of(folder: Path, environ: dict[str, str] | None = None, **keys: Any) -> TrainPlan:
    return await check(config_of(folder, **keys), environ or NO_GPU, folder)


async def refusal(folder: Path, environ: dict[str, str] | None = None, **keys: Any) -> str:
    with pytest.raises(OperatorError) as raised:
        await plan_of(folder, environ, **keys)
    return str(raised.value)


async def test_the_plan_says_what_is_trained_on_what(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    keys: dict[str, Any] = {"groups_per_step": 4, "evaluation": {"input_jsonl_fpath": str(ROWS), "limit": 2}}
    heading = (await plan_of(tmp_path, **keys)).heading()
    for text in ("model      model, trained on a CPU", "agent      gsm8k_agent", "4 tasks x 8 = 32 rollouts each"):
        assert text in heading
    assert "2 tasks" in heading and "10 steps" in heading
    assert not (tmp_path / "out").exists()


async def test_a_model_that_does_not_exist_or_is_not_complete_is_refused(tmp_path: Path) -> None:
    assert "hub name" in await refusal(tmp_path)
    folder = model_folder(tmp_path / "model")
    for name, expected in (
        ("tokenizer.json", "contains no tokenizer"),
        ("model.safetensors", "contains no *.safetensors"),
        ("config.json", "contains no config.json"),
    ):
        (folder / name).unlink()
        assert expected in await refusal(tmp_path)


async def test_all_weights_of_a_tied_model_cannot_be_trained_on_a_cpu(tmp_path: Path) -> None:
    model_folder(tmp_path / "model", tied=True)
    assert "tie_word_embeddings: true" in await refusal(tmp_path)
    assert await plan_of(tmp_path, optimizer={"lora": {}})  # adapters leave the head unchanged


async def test_a_weight_transfer_between_gpus_needs_gpus(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    assert "needs GPUs" in await refusal(tmp_path, weights={"method": "nccl"})


async def test_data_and_agents_are_checked(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    assert "no data given" in await refusal(tmp_path, input_jsonl_fpath=None)
    assert "does not exist" in await refusal(tmp_path, input_jsonl_fpath="rows.jsonl")
    error = await refusal(tmp_path, evaluation={"input_jsonl_fpath": "test.jsonl"})
    assert "evaluation.input_jsonl_fpath=test.jsonl" in error
    assert "other_agent" in await refusal(tmp_path, agent_name="other_agent")


async def test_a_disk_that_is_too_small_is_noticed(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(shutil.disk_usage(tmp_path).total)  # a sparse file
    assert "GiB free" in await refusal(tmp_path)


async def test_a_folder_with_another_run_is_refused_with_the_differences(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.yaml").write_text(settings_yaml(config_of(tmp_path, group_size=4)))
    assert "group_size was 4, now 8" in await refusal(tmp_path)
    assert await plan_of(tmp_path, group_size=4)


async def test_a_head_that_is_not_there_or_whose_policy_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    model_folder(tmp_path / "model")
    keys: dict[str, Any] = {"environments": []}
    assert "head=http://127.0.0.1:1" in await refusal(tmp_path, head="127.0.0.1:1", **keys)
    async with colocated(load_config(), tmp_path, token="t") as stack:
        head = stack.head_url.removeprefix("http://")
        environ = {**NO_GPU, "ROLLYARD_TOKEN": "t"}
        assert "export it as ROLLYARD_TOKEN" in await refusal(tmp_path, head=head, **keys)
        assert "policy_model cannot be trained" in await refusal(tmp_path, environ, head=head, **keys)
        error = await refusal(tmp_path, environ, head=head, policy_server="policy", **keys)
        assert "did you mean 'policy_model'" in error
    assert "remove environments" in await refusal(tmp_path, head="127.0.0.1:1")
