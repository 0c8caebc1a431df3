"""SkyRL's own checks accept what the generator returns."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Optional, TypedDict, Union, get_type_hints

import numpy
import pytest

from rollyard.interop.skyrl import StackGenerator
from tests.external.trainers.wheel_sources import module_of
from tests.unit.interop.scripted_session import answer, playing, task

TYPING = {"Any": Any, "Dict": dict, "List": list, "Literal": Literal, "Optional": Optional, "Union": Union}
BASE = module_of(
    "skyrl.train.generators.base",
    *("TrajectoryID", "GeneratorInput", "GeneratorOutput", "GeneratorInterface", "TrainingPhase", "BatchMetadata"),
    **TYPING,
    ABC=ABC,
    abstractmethod=abstractmethod,
    dataclass=dataclass,
    TypedDict=TypedDict,
    ConversationType=list,
    RoutedExpertIndices=object,
    SampleSupport=object,
    torch=type("torch", (), {"Tensor": object}),
)
CHECKS = module_of(
    "skyrl.train.utils.trainer_utils",
    *("validate_generator_output", "_validate_per_token_side_channels", "_validate_step_wise_fields"),
    **TYPING,
    GeneratorOutput=dict,
    SAMPLE_SUPPORT_FIELD="rollout_sample_support",
    logger=logging.getLogger(),
    np=numpy,
)
KINDS = ("won", "lost", "broken", "cut", "changed", "slow")


async def generated(step_wise: bool) -> Any:
    batch = {
        "prompts": [[{"role": "user", "content": "Solve it."}] for _ in KINDS],
        "env_classes": ["rollyard"] * len(KINDS),
        "env_extras": [{"row": json.dumps(task(kind))} for kind in KINDS],
        "sampling_params": {"temperature": 1.0},
        "trajectory_ids": [BASE.TrajectoryID("task", repeat) for repeat in range(len(KINDS))],
    }
    with playing(answer) as (player, _):
        return await StackGenerator(player, filler_id=7, step_wise=step_wise).generate(batch)


@pytest.mark.parametrize("step_wise", [False, True])
async def test_the_output_is_valid(step_wise: bool) -> None:
    output = await generated(step_wise)
    CHECKS.validate_generator_output(len(KINDS), output, step_wise=step_wise)
    assert len(output["response_ids"]) == len(KINDS) + step_wise


@pytest.mark.smoke
async def test_the_output_has_only_fields_of_generator_output() -> None:
    assert (await generated(True)).keys() <= get_type_hints(BASE.GeneratorOutput).keys()


def test_the_generator_has_the_methods_of_the_interface() -> None:
    assert all(hasattr(StackGenerator, name) for name in BASE.GeneratorInterface.__abstractmethods__)
