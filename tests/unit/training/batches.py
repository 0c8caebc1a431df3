"""Makes batches of rollouts with recorded tokens."""

from __future__ import annotations

from typing import Any

from rollyard.records.types import Json
from rollyard.training.groups import EndingRules, GroupMember, Treatment, groups_of, member_of_failure, member_of_row
from rollyard.training.step_runner import StepTimes
from rollyard.training.training_sequence import SequenceRules
from rollyard.training.update import Batch
from tests.unit.training.recorded_turns import row, turn

TIMES = StepTimes(rollout_wait_s=2.0, update_s=1.0, publish_s=0.5, step_s=4.0)


def played(reward: float, *turns: Json, task: str = "a", version: str = "step_000000", **fields: Any) -> GroupMember:
    """A measured rollout; by default of one turn with the tokens 2 and 3."""
    rollout = row(*(turns or (turn([1], [2, 3], policy_version=version),)), reward=reward, **fields)
    return member_of_row(rollout, task, SequenceRules(), EndingRules())


def failed(treatment: Treatment = Treatment.LEFT_OUT, task: str = "a") -> GroupMember:
    return member_of_failure(task, 0, "timeout", treatment)


def batch(*members: GroupMember, step: int = 1, **failures: int) -> Batch:
    return Batch(step, tuple(groups_of(members, scale="group")), {}, failures=failures)
