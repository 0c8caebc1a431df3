"""The method by which weights are published."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.services.errors import RunError
from rollyard.services.training.train_config import WeightSettings
from rollyard.services.training.weight_publisher import resolved_method

GPUS: dict[str, Any] = {"trainer_has_gpu": True, "engines_on_cpu": False, "has_adapters": False}
OBSTACLES: list[dict[str, Any]] = [
    {"trainer_has_gpu": False},
    {"engines_on_cpu": True},
    {"has_adapters": True},
    {"processes": 2},
]


def test_auto_is_nccl_between_gpus() -> None:
    assert resolved_method(WeightSettings(), **GPUS) == "nccl"


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_auto_is_files_where_a_transfer_is_impossible(obstacle: dict[str, Any]) -> None:
    assert resolved_method(WeightSettings(), **{**GPUS, **obstacle}) == "files"


@pytest.mark.parametrize("method", ["nccl", "ipc"])
@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_an_impossible_method_is_refused(method: str, obstacle: dict[str, Any]) -> None:
    with pytest.raises(RunError, match=f"weights.method is {method}, .*weights.method: files"):
        resolved_method(WeightSettings(method=method), **{**GPUS, **obstacle})
