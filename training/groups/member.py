"""GroupMember: one rollout of a group, as training sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollyard.records.io.json_values import is_number, mapping, number, whole_number
from rollyard.records.rollouts.rewards import EXPECTED, is_reward
from rollyard.records.types import FinishReason, Json
from rollyard.training.endings import EndingRules, Treatment
from rollyard.training.sequences.training_sequence import (
    SequenceError,
    SequenceRules,
    TrainingSequence,
    training_sequences,
)


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
    """Empty unless `treatment` is played or masked."""
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
        """True if the reward counts in the group's mean and standard deviation."""
        return self.treatment is not Treatment.LEFT_OUT

    @property
    def has_loss(self) -> bool:
        """True if at least one token has a loss."""
        return self.treatment is Treatment.PLAYED and any(sequence.loss_tokens for sequence in self.sequences)


def member_of_row(row: Json, task_key: str, rules: SequenceRules, endings: EndingRules) -> GroupMember:
    """Return a measured rollout as a group member. Raises SequenceError if its tokens or its reward cannot be used."""
    ending, treatment = endings.of_row(row)
    if treatment is not Treatment.LEFT_OUT and not is_reward(row.get("reward")):
        raise SequenceError(f"the rollout has reward {row.get('reward')!r:.100}; {EXPECTED}")
    has_tokens = treatment in (Treatment.PLAYED, Treatment.MASKED)
    return GroupMember(
        task_key=task_key,
        repeat=int(row.get("_ng_rollout_index", 0)),
        ending=ending,
        treatment=treatment,
        reward=number(row.get("reward"), 0.0),
        sequences=tuple(training_sequences(row, rules)) if has_tokens else (),
        components={name: value for name, value in mapping(row.get("reward_components")).items() if is_number(value)},
        success=success if isinstance(success := row.get("success"), bool) else None,
        completion_tokens=_completion_tokens(row),
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


def _completion_tokens(row: Json) -> int:
    output = mapping(row.get("response")).get("output")
    items = output if isinstance(output, list) else []
    return sum(len(item["generation_token_ids"]) for item in items if mapping(item).get("generation_token_ids"))
