"""Rollouts as the columns that TRL's GRPOTrainer (1.16) expects from a `rollout_func`: one row per rollout."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rollyard.records.errors import RunError
from rollyard.training.groups.member import GroupMember
from rollyard.training.sequences.exports import trl_rollouts
from rollyard.training.sequences.training_sequence import TrainingSequence

SeveralSequences = Literal["mask", "last", "refuse"]
REWARD, ENDING = "rollout_reward", "rollout_ending"


@dataclass(frozen=True, slots=True)
class RowRules:
    """How rollouts become rows."""

    filler_id: int
    """Token of rows without a loss. TRL cannot represent an empty row."""
    temperature: float
    """The temperature at which the trainer computes log-probabilities."""
    several_sequences: SeveralSequences = "mask"
    """What to do with a rollout whose tokens are several sequences, of which a row holds one. `mask`: its reward counts
    in the group, its tokens have no loss. `last`: only the tokens of the last sequence have one. `refuse`: stop."""
    max_seq_len: int | None = None
    """Rollouts with more tokens have no loss."""


def trl_columns(members: Sequence[GroupMember], rules: RowRules) -> dict[str, list[Any]]:
    """Return TRL's columns, the reward and the ending of each rollout.

    A rollout that is left out has the reward NaN: TRL then leaves it out of the group's mean and standard deviation,
    and sets its advantage to 0. Rows whose tokens have no loss hold one token with the mask 0.

    Raises RunError if no rollout can be trained on because all have several sequences or are too long, if one has and
    the rules refuse it, or if a rollout was sampled at another temperature.
    """
    refused: Counter[str] = Counter()
    chosen = [_sequence(member, rules, refused) for member in members]
    if refused and not any(chosen):
        raise RunError(f"none of {len(members)} rollouts can be trained on ({_list(refused)}). {_ADVICE}")
    filler = TrainingSequence([rules.filler_id], [rules.filler_id], [0], [0.0], [0], [None], rules.temperature)
    columns = trl_rollouts([sequence or filler for sequence in chosen])
    columns[REWARD] = [member.reward if member.counts else math.nan for member in members]
    columns[ENDING] = [member.ending for member in members]
    return columns


_ADVICE = (
    "GRPOTrainer takes one sequence per rollout. ng_train uses all sequences of a rollout; otherwise set "
    "several_sequences=last, or let the agent keep the history as it was sampled"
)


def _sequence(member: GroupMember, rules: RowRules, refused: Counter[str]) -> TrainingSequence | None:
    """Return the tokens of a rollout, or None if they have no loss. Counts why they have none in `refused`."""
    if not member.has_loss:
        return None
    sequence = member.sequences[-1]
    if len(member.sequences) > 1 and rules.several_sequences != "last":
        if rules.several_sequences == "refuse":
            raise RunError(f"the tokens of a rollout are {len(member.sequences)} sequences. {_ADVICE}")
        refused["several sequences"] += 1
        return None
    if rules.max_seq_len is not None and sequence.length > rules.max_seq_len:
        refused[f"more than {rules.max_seq_len} tokens"] += 1
        return None
    if abs(sequence.temperature - rules.temperature) > 1e-6:
        raise RunError(
            f"a rollout was sampled at temperature {sequence.temperature:g}, but the trainer computes "
            f"log-probabilities at {rules.temperature:g}. Set it in GRPOConfig only, and start vLLM with "
            "--logprobs-mode processed_logprobs"
        )
    return sequence if sequence.loss_tokens else None


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{count} have {name}" for name, count in sorted(counts.items()))
