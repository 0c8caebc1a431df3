"""Miles' own Sample, which is slime's, is valid with what the adapter fills in, and survives its dict form."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from rollyard.interop.slime import SlimeRollouts
from tests.external.trainers.wheel_sources import module_of
from tests.unit.interop.scripted_session import answer, playing, task

Sample = module_of(
    "miles.utils.types", "Sample", dataclass=dataclass, field=field, Enum=Enum, Any=Any, numpy=numpy
).Sample
ARGS = SimpleNamespace(
    custom_reward_post_process_path="my_rollouts.rewards",
    rewards_normalization=True,
    advantage_estimator="grpo",
    grpo_std_normalization=False,
    reward_key=None,
)
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 32, "skip_special_tokens": False}


async def played(kind: str, index: int = 0) -> tuple[list[Any], SlimeRollouts]:
    sample = Sample(group_index=0, index=index, prompt="Solve it.", metadata={"row": json.dumps(task(kind))})
    with playing(answer) as (player, _):
        rollouts = SlimeRollouts(player)
        found = await rollouts.generate(ARGS, sample, SAMPLING)
    return (found if isinstance(found, list) else [found]), rollouts


@pytest.mark.parametrize("kind", ["won", "cut", "changed", "broken", "slow"])
async def test_samples_are_valid_and_keep_their_content_as_dicts(kind: str) -> None:
    for sample in (await played(kind))[0]:
        sample.validate()
        copy = Sample.from_dict(sample.to_dict())
        assert copy.tokens == sample.tokens and copy.status is sample.status


async def test_the_oldest_version_of_a_sample_is_known() -> None:
    [sample], _ = await played("won")
    assert sample.oldest_weight_version == 7
