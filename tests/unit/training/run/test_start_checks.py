"""Checks of a training run that need neither torch nor a process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.training.run.start_checks import check
from rollyard.training.train_config import TrainConfig


async def refusal(folder: Path, **keys: Any) -> str:
    given = {"model": "tiny", "output_dir": folder / "out", "environments": ["gsm8k"], **keys}
    with pytest.raises(OperatorError) as raised:
        await check(TrainConfig.model_validate(given), {"CUDA_VISIBLE_DEVICES": ""}, folder)
    assert not (folder / "out").exists()
    return str(raised.value)


@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": None, "max_output_tokens": 5}])
async def test_rollouts_of_a_group_need_a_temperature(tmp_path: Path, params: dict[str, Any]) -> None:
    assert "expected more than 0" in await refusal(tmp_path, responses_create_params=params)


async def test_a_truncated_distribution_is_refused_with_the_setting_that_allows_it(tmp_path: Path) -> None:
    error = await refusal(tmp_path, responses_create_params={"temperature": 1, "top_p": 0.9})
    assert "top_p is 0.9" in error and "loss.constrained_turns=reweight" in error


async def test_misspelt_and_impossible_sampling_parameters_are_refused(tmp_path: Path) -> None:
    error = await refusal(tmp_path, responses_create_params={"temperature": 1, "max_output_token": 5})
    assert "did you mean" in error
    error = await refusal(tmp_path, evaluation={"responses_create_params": {"temperature": -1}})
    assert "evaluation.responses_create_params.temperature is -1;" in error


async def test_a_secret_in_an_override_is_refused(tmp_path: Path) -> None:
    error = await refusal(tmp_path, overrides=["policy_model.responses_api_models.vllm_model.api_key=abc"])
    assert "api_key" in error and "abc" not in error


async def test_missing_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    error = await refusal(tmp_path)
    assert "trl" in error and "Install rollyard[train]: " in error and "\n" not in error
