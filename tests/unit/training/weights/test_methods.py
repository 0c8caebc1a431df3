"""The method by which weights are published, and what engines need for it."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.records.errors import RunError
from rollyard.training.train_config import WeightSettings
from rollyard.training.weights.methods import engine_options, resolved_method

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


def test_engines_get_the_flags_of_the_method() -> None:
    assert engine_options("files") == ({}, {})
    assert engine_options("nccl") == ({"weight_transfer_config": {"backend": "nccl"}}, {})
    assert engine_options("ipc")[1] == {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}


@pytest.mark.parametrize(("rank", "size"), [(1, 8), (8, 8), (9, 16), (100, 128)])
def test_engines_accept_adapters_of_at_least_the_trained_rank(rank: int, size: int) -> None:
    flags, environment = engine_options("files", max_lora_rank=rank)
    assert flags == {"enable_lora": True, "max_lora_rank": size}
    assert environment == {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def test_a_rank_that_vllm_cannot_load_is_refused() -> None:
    with pytest.raises(RunError, match="rank is 1000"):
        engine_options("files", max_lora_rank=1000)
