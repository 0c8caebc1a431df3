"""Checks of a training run that need neither torch nor a process."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.training.start_checks import check
from rollyard.training.train_config import TrainConfig


async def refusal(folder: Path, **keys: Any) -> str:
    given = {"model": "tiny", "output_dir": folder / "out", "environments": ["gsm8k"], **keys}
    with pytest.raises(OperatorError) as raised:
        await check(TrainConfig.model_validate(given), {"CUDA_VISIBLE_DEVICES": ""}, folder)
    assert not (folder / "out").exists()
    return str(raised.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"responses_create_params": {"temperature": 0}}, "expected more than 0"),
        ({"responses_create_params": {"temperature": None, "max_output_tokens": 5}}, "expected more than 0"),
        ({"responses_create_params": {"top_p": 0.9}}, "top_p is 0.9.*loss.constrained_turns=reweight"),
        ({"responses_create_params": {"max_output_token": 5}}, "did you mean"),
        (
            {"evaluation": {"responses_create_params": {"temperature": -1}}},
            r"evaluation\.responses_create_params\.temperature is -1;",
        ),
        ({"overrides": ["policy_model.responses_api_models.vllm_model.api_key=abc"]}, "api_key(?!.*abc)"),
    ],
)
async def test_impossible_sampling_and_secrets_are_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    assert re.search(message, await refusal(tmp_path, **keys))


async def test_missing_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    error = await refusal(tmp_path)
    assert "trl" in error and "Install rollyard[train]: " in error and "\n" not in error
