"""The rows and failures of a step as group members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from rollyard.records.errors import RunError
from rollyard.records.rollouts.rollout_keys import Key
from rollyard.records.types import Json
from rollyard.training.endings import EndingRules, Treatment
from rollyard.training.groups.member import GroupMember, member_of_failure, member_of_row
from rollyard.training.play.policy_age import policy_age
from rollyard.training.play.step_files import StepFiles
from rollyard.training.sequences.training_sequence import SequenceError, SequenceRules

STALE = "stale"
"""Ending of a rollout that is left out because its weights are too old."""


class OtherWeights(RunError):
    """Rollouts were sampled with weights other than those that this step plays with."""


@dataclass(frozen=True, slots=True)
class MemberRules:
    """The settings by which rollouts become group members."""

    sequences: SequenceRules
    endings: EndingRules
    policy_servers: frozenset[str]
    max_staleness: int

    def is_final(self, kind: str, server: str, agents: Collection[str]) -> bool:
        """Return whether a rollout that failed in this way is never retried."""
        return self.endings.is_final(kind, server, agents, self.policy_servers)


@dataclass(frozen=True, slots=True)
class StepMembers:
    """The members of a step's groups, by task and then by repeat."""

    members: tuple[GroupMember, ...]
    failures: Counter[str]
    """Number of permanently failed rollouts by failure kind."""
    retryable: frozenset[int]
    """Index of each task with a rollout that failed although another attempt might succeed."""
    last_failure: Json | None
    """The record of one of the failed attempts."""

    @property
    def stale(self) -> int:
        """Number of rollouts that are left out because their weights are too old."""
        return sum(member.ending == STALE for member in self.members)


def read_members(files: StepFiles, keys: Sequence[str], repeats: int, step: int, rules: MemberRules) -> StepMembers:
    """Return the members of a step whose rollouts have all ended; `keys`: the group of each task.

    Raises RunError if a rollout is missing or cannot be trained on, and OtherWeights.
    """
    rows, failed = files.rows(), files.failures()
    members, kinds, retryable, last = list[GroupMember](), Counter[str](), set[int](), None
    for index, group in enumerate(keys):
        for repeat in range(repeats):
            if (row := rows.get((index, repeat))) is not None:
                members.append(_measured(row, group, (index, repeat), step, rules, files))
                continue
            if (failure := failed.get((index, repeat))) is None:
                raise RunError(
                    f"{files.paths.output} lacks task {index}, repeat {repeat}, which it had: restore the file, or "
                    "move it away to play the step again"
                )
            kind, server = str(failure.get("failure_kind")), str(failure.get("server"))
            treatment = rules.endings.of_failure(kind, server, rules.policy_servers)
            members.append(member_of_failure(group, repeat, kind, treatment))
            kinds[kind] += 1
            last = failure
            if not failure.get("terminal"):
                retryable.add(index)
    return StepMembers(tuple(members), kinds, frozenset(retryable), last)


def _measured(row: Json, group: str, key: Key, step: int, rules: MemberRules, files: StepFiles) -> GroupMember:
    where = f"{files.paths.output}: task {key[0]}, repeat {key[1]}"
    try:
        member = member_of_row(row, group, rules.sequences, rules.endings)
        age = policy_age(member.sequences)
    except (SequenceError, RunError) as error:
        raise RunError(f"{where}: {error}") from error
    if age is None:
        return member
    if age.newest >= step:
        raise OtherWeights(
            f"{where} was sampled with weights after {age.newest} updates, but step {step} plays with those after "
            f"{step - 1}: another trainer uses the same engines, or the rollouts belong to another run"
        )
    if step - 1 - age.oldest > rules.max_staleness:
        return replace(member, ending=STALE, treatment=Treatment.LEFT_OUT, sequences=())
    return member
