"""verl's estimator without rollouts that do not count agrees with verl's own GRPO where all count."""

from __future__ import annotations

import math
from collections import defaultdict
from enum import Enum
from typing import Any, Optional

import numpy
import pytest
import torch

from tests.external.trainers.wheel_sources import module_of

THEIRS = module_of(
    "verl.trainer.ppo.core_algos",
    *("register_adv_est", "compute_grpo_outcome_advantage", "AdvantageEstimator", "ADV_ESTIMATOR_REGISTRY"),
    Any=Any,
    AdvantageEstimatorFn=Any,
    AlgoConfig=object,
    Enum=Enum,
    Optional=Optional,
    defaultdict=defaultdict,
    np=numpy,
    torch=torch,
)
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
GROUPS = numpy.array(["a", "a", "a", "b", "b"], dtype=object)


def token_rewards(*rewards: float) -> Any:
    found = torch.zeros_like(MASK)
    found[:, -1] = torch.tensor(rewards)
    return found


@pytest.fixture(scope="module")
def estimator() -> Any:
    from rollyard.interop.verl_advantages import masked_grpo

    return masked_grpo


@pytest.mark.smoke
def test_verl_finds_the_estimator_by_its_name(estimator: Any) -> None:
    assert THEIRS.ADV_ESTIMATOR_REGISTRY["rollyard_grpo"] is estimator


@pytest.mark.parametrize("scaled", [True, False])
def test_advantages_are_those_of_grpo_if_all_rollouts_count(estimator: Any, scaled: bool) -> None:
    rewards = token_rewards(1.0, 0.0, 0.5, 2.0, 1.0)
    expected, _ = THEIRS.compute_grpo_outcome_advantage(rewards.clone(), MASK, GROUPS, norm_adv_by_std_in_grpo=scaled)
    found, returns = estimator(rewards, MASK, GROUPS, config={"norm_adv_by_std_in_grpo": scaled})
    assert torch.allclose(found, expected, atol=1e-5) and torch.equal(found, returns)


def test_a_rollout_that_does_not_count_changes_no_advantage(estimator: Any) -> None:
    found, _ = estimator(token_rewards(1.0, 0.0, math.nan, 2.0, math.nan), MASK, GROUPS)
    assert found[:, 0].tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0.0, 0.0, 0.0], abs=1e-5)
    assert torch.isfinite(found).all()
