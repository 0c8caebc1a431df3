"""Groups: the rollouts of one task in one update, their advantages, and what each way to end an episode means."""

from __future__ import annotations

import difflib
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from rollyard.records.errors import FailureKind
from rollyard.records.rewards import EXPECTED, is_reward, mask_of
from rollyard.records.types import FinishReason, Json, Record, is_number, items, mapping, number, whole_number
from rollyard.training.training_sequence import SequenceError, SequenceRules, TrainingSequence, training_sequences


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A measured or permanently failed rollout."""

    task_key: str
    """Identifies the group: members with the same key are rollouts of the same task."""
    repeat: int
    """Index of the rollout in its group."""
    ending: str
    """Finish reason, or the failure kind of a failed rollout."""
    treatment: Treatment
    reward: float = 0.0
    """Meaningless if `treatment` is left_out."""
    sequences: tuple[TrainingSequence, ...] = ()
    """Empty unless `treatment` is played or masked, and if the model has answered nothing."""
    components: dict[str, float] = field(default_factory=dict)
    """Parts of the reward by name."""
    success: bool | None = None
    """Whether the task was solved; None if the environment does not report it."""
    completion_tokens: int = 0
    """Number of tokens that the policy generated in the whole rollout, also those without a loss."""
    task_index: int = -1
    """Index of the task in the step's rollout file; -1 if unknown."""
    parse_error: bool = False
    """True if the environment found no answer in the response, or the engine could not parse a tool call."""

    @property
    def counts(self) -> bool:
        return self.treatment is not Treatment.LEFT_OUT

    @property
    def has_loss(self) -> bool:
        return self.treatment is Treatment.PLAYED and any(sequence.loss_tokens for sequence in self.sequences)


def member_of_row(row: Json, task_key: str, rules: SequenceRules, endings: EndingRules) -> GroupMember:
    """Return a measured rollout as a group member. Raises SequenceError if its tokens or its reward cannot be used."""
    ending, treatment = endings.of_row(row)
    if treatment is not Treatment.LEFT_OUT and not is_reward(row.get("reward")):
        raise SequenceError(f"the rollout has reward {row.get('reward')!r:.100}; {EXPECTED}")
    # A program's time may be over before the model has answered it once.
    is_answered = mapping(row.get("timings")).get("model_calls") != 0 or mapping(row.get("response")).get("output")
    has_tokens = is_answered and treatment in (Treatment.PLAYED, Treatment.MASKED)
    return GroupMember(
        task_key=task_key,
        repeat=int(row.get("_ng_rollout_index", 0)),
        ending=ending,
        treatment=treatment,
        reward=number(row.get("reward"), 0.0),
        sequences=tuple(training_sequences(row, rules)) if has_tokens else (),
        components={name: value for name, value in mapping(row.get("reward_components")).items() if is_number(value)},
        success=success if isinstance(success := row.get("success"), bool) else None,
        completion_tokens=completion_tokens(row),
        task_index=-1 if (index := whole_number(row.get("_ng_task_index"))) is None else index,
        parse_error=has_parse_error(row),
    )


def member_of_failure(task_key: str, repeat: int, kind: str, treatment: Treatment) -> GroupMember:
    """Return a permanently failed rollout as a group member; its treatment is that of `EndingRules.of_failure`."""
    return GroupMember(task_key=task_key, repeat=repeat, ending=kind, treatment=treatment)


def has_parse_error(row: Json) -> bool:
    """Return whether there is no answer in the response, or the engine could not parse a tool call.

    An environment may read an answer that its score does not accept, and then says so itself (`parse_error`).
    """
    if row.get("finish_reason") == FinishReason.UNREADABLE_CALL:
        return True
    return bool(row.get("parse_error", row.get("extracted_answer", "") is None))


def completion_tokens(row: Json) -> int:
    """Return the number of tokens that the policy generated, or else the one that the endpoint reported."""
    response = mapping(row.get("response"))
    found = [mapping(item).get("generation_token_ids") for item in items(response.get("output"))]
    if any(ids is not None for ids in found):
        return sum(len(ids or ()) for ids in found)
    return whole_number(mapping(response.get("usage")).get("output_tokens")) or 0


Scale = Literal["group", "batch", "none"]
"""By which standard deviation advantages are divided: that of the group, of all rewards of the batch, or none."""
SkipReason = Literal["too_few_members", "zero_variance", "no_loss"]
"""Why a group is skipped. `no_loss`: no token of it has a loss."""

_EPSILON = 1e-4
"""TRL (1.16) adds it to the standard deviation."""
_MIN_DEVIATION = 1e-6
"""Standard deviations below count as zero: rewards that differ by less are equal but for rounding."""


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The rollouts of one task. `advantages` has a number for each member, 0 for those that are left out."""

    task_key: str
    members: tuple[GroupMember, ...]
    advantages: tuple[float, ...]
    skipped: SkipReason | None = None
    """Why the group does not take part in the update; None if it does. Its advantages are then 0."""


def groups_of(members: Iterable[GroupMember], *, scale: Scale, min_members: int = 2) -> list[RolloutGroup]:
    """Group rollouts by task, in the order of each task's first member, and compute their advantages.

    An advantage is (reward - mean of the group) / (standard deviation + 1e-4), as in TRL's GRPOTrainer: both are over
    the members that count, and the latter has the divisor n - 1. A group with fewer than `min_members` of them, with
    equal rewards or without a token to train on is skipped. Its rewards count in the standard deviation of the batch.
    """
    by_task: dict[str, list[GroupMember]] = defaultdict(list)
    for member in members:
        by_task[member.task_key].append(member)
    batch = _deviation([member.reward for found in by_task.values() for member in found if member.counts])
    return [_group(key, found, scale, batch, min_members) for key, found in by_task.items()]


def _group(key: str, members: Sequence[GroupMember], scale: Scale, batch: float, min_members: int) -> RolloutGroup:
    rewards = [member.reward for member in members if member.counts]
    skipped: SkipReason | None = None
    if len(rewards) < max(2, min_members):
        skipped = "too_few_members"
    elif _deviation(rewards) < _MIN_DEVIATION:
        skipped = "zero_variance"
    elif not any(member.has_loss for member in members):
        skipped = "no_loss"
    if skipped:
        return RolloutGroup(key, tuple(members), (0.0,) * len(members), skipped)
    mean = statistics.fmean(rewards)
    divisor = {"group": _deviation(rewards) + _EPSILON, "batch": batch + _EPSILON, "none": 1.0}[scale]
    advantages = tuple((member.reward - mean) / divisor if member.counts else 0.0 for member in members)
    return RolloutGroup(key, tuple(members), advantages)


def _deviation(rewards: Sequence[float]) -> float:
    return statistics.stdev(rewards) if len(rewards) > 1 else 0.0


class Treatment(StrEnum):
    """How a rollout takes part in an update."""

    PLAYED = "played"
    """Its tokens have a loss, and its reward counts in the group's mean and standard deviation."""
    MASKED = "masked"
    """Its tokens have no loss. Its reward counts, because the group's other members are compared with it."""
    ZERO = "zero"
    """It has no tokens. It counts in the group's mean and standard deviation with reward 0."""
    LEFT_OUT = "left_out"
    """It does not take part: neither its tokens nor its reward count."""


UNKNOWN = "unknown"
"""Finish reason of rows that have none, such as those of NeMo Gym's agents."""

DEFAULTS: dict[str, Treatment] = {
    FinishReason.DONE: Treatment.PLAYED,
    FinishReason.ANSWERED: Treatment.PLAYED,
    FinishReason.TRUNCATED: Treatment.PLAYED,
    # The usual way to lose a game: without it, the policy would learn only from episodes that it finished.
    FinishReason.MAX_STEPS: Treatment.PLAYED,
    FinishReason.TIME_LIMIT: Treatment.PLAYED,
    FinishReason.PROGRAM_FAILED: Treatment.PLAYED,
    FinishReason.UNREADABLE_CALL: Treatment.PLAYED,
    # The text was cut off, so its reward says nothing about where it was going.
    FinishReason.LENGTH: Treatment.MASKED,
    FinishReason.CONTEXT_OVERFLOW: Treatment.MASKED,
    FinishReason.CONTENT_FILTER: Treatment.MASKED,
    UNKNOWN: Treatment.PLAYED,
}
"""Treatment by finish reason. Reasons that only an agent of one's own has are played."""


class EndingRules(Record):
    """Settings of how rollouts take part in an update, by how they ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    finish_reasons: dict[str, Treatment] = Field(default_factory=dict)
    """Treatment by finish reason, instead of the defaults. `unknown` is for rows without a finish reason."""
    model_timeout: Treatment = Treatment.ZERO
    """Treatment of an episode that failed because the policy did not answer in time: `zero` or `left_out`. If it were
    left out, a policy could avoid a bad reward by being slow."""
    server_timeout: Treatment = Treatment.LEFT_OUT
    """Treatment of an episode that failed because any other server did not answer in time: `zero` or `left_out`."""

    @field_validator("model_timeout", "server_timeout")
    @classmethod
    def _check_timeout(cls, treatment: Treatment) -> Treatment:
        if treatment in (Treatment.PLAYED, Treatment.MASKED):
            raise ValueError(
                f"{treatment!s} is impossible: a failed rollout has no tokens and no reward. Use zero or left_out"
            )
        return treatment

    @field_validator("finish_reasons")
    @classmethod
    def _check_names(cls, given: dict[str, Treatment]) -> dict[str, Treatment]:
        # An agent may have finish reasons of its own, so that only likely typing mistakes are refused.
        for name, treatment in given.items():
            close = difflib.get_close_matches(name, DEFAULTS, 1, 0.8)
            if name not in DEFAULTS and close:
                raise ValueError(f"unknown finish reason {name!r}; did you mean {close[0]}?")
            if treatment is Treatment.ZERO:
                raise ValueError(
                    f"{name}: zero is for failed rollouts; one with a reward is played, masked or left_out"
                )
        return given

    def of_row(self, row: Json) -> tuple[str, Treatment]:
        """Return the finish reason of a rollout and its treatment. Masked rows are left out."""
        reason = str(row.get("finish_reason") or UNKNOWN)
        if mask_of(row):
            return reason, Treatment.LEFT_OUT
        return reason, self.finish_reasons.get(reason) or DEFAULTS.get(reason, Treatment.PLAYED)

    def of_failure(self, kind: str, server: str, model_servers: Collection[str]) -> Treatment:
        """Return the treatment of a permanently failed rollout. `model_servers`: names of the policy's servers."""
        if kind != FailureKind.TIMEOUT:
            return Treatment.LEFT_OUT
        return self.model_timeout if server in model_servers else self.server_timeout

    def is_final(self, kind: str, server: str, agents: Collection[str], model_servers: Collection[str]) -> bool:
        """Return whether a rollout that failed in this way is never retried.

        Bad tasks fail again. A failure that counts with reward 0 must stay one, and so must an episode that exceeded
        its deadline as a whole: no answer may buy a second try by what it costs.
        """
        if kind == FailureKind.BAD_TASK or (kind == FailureKind.TIMEOUT and server in agents):
            return True
        return self.of_failure(kind, server, model_servers) is not Treatment.LEFT_OUT
