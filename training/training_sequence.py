"""TrainingSequence: tokens of an episode that follow each other exactly, with a loss mask over those of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rollyard.records.errors import RollyardError, RunError
from rollyard.records.types import Json, mapping, whole_number
from rollyard.records.types import items as items_of
from rollyard.services.responses.policy_logprobs import (
    are_ids,
    has_sampled_log_probs,
    invalid_numbers,
    temperature_of,
    why_not_policy_logprobs,
)

_TOKENS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
"""The last item of a model call has all of them."""


class SequenceError(RollyardError):
    """A rollout has no recorded tokens, invalid ones, or tokens that the rules do not allow to train on."""


@dataclass(frozen=True, slots=True)
class SequenceRules:
    """What to do with turns whose recorded log-probabilities are not the policy's own."""

    constrained_turns: Literal["refuse", "mask", "reweight"] = "refuse"
    """`refuse`: raise SequenceError. `mask`: keep the tokens as context, without a loss. `reweight`: train on them with
    importance weights, exp(the policy's log-probability - the recorded one); turns without one are masked."""
    assumed_temperature: float | None = None
    """Temperature of turns without a record of their sampling parameters, such as those of other stacks. Their
    log-probabilities then count as the policy's own at this temperature. None: such turns are constrained turns."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """Consecutive tokens of an episode. All lists except `prompt_ids` have the length of `completion_ids`."""

    prompt_ids: list[int]
    """The prompt of the sequence's first turn."""
    completion_ids: list[int]
    """The tokens generated in each turn, with the prompt tokens that follow them up to the next turn."""
    loss_mask: list[int]
    """1 for generated tokens with a loss, otherwise 0."""
    log_probs: list[float]
    """The engine's log-probability of each generated token, in nats; 0 elsewhere."""
    reweighted: list[int]
    """1 where `log_probs` is that of a constrained distribution, so that the token needs an importance weight."""
    versions: list[str | None]
    """Version of the weights that sampled each token; None if unknown, and for tokens that were not generated."""
    temperature: float
    """By which the logits are divided before they are compared with `log_probs`."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def loss_tokens(self) -> int:
        return sum(self.loss_mask)

    @property
    def loss_log_probs(self) -> list[float]:
        """`log_probs` of the tokens with a loss; 0 elsewhere."""
        return [value if has_loss else 0.0 for value, has_loss in zip(self.log_probs, self.loss_mask, strict=True)]


def training_sequences(row: Json, rules: SequenceRules) -> list[TrainingSequence]:
    """Return the token sequences of a rollout, as `POST /run` returns it or a rollout file contains it.

    An episode is one sequence if the prompt of each turn begins with the tokens of the previous turn. A new sequence
    begins where it does not (a prefix mismatch) and where the sampling temperature changes.

    Raises SequenceError if tokens are missing or invalid, or if a turn is constrained and the rules refuse it.
    """
    response = row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    # A turn that lacks one of the fields is an error, not context: its tokens would have no loss.
    items = [item for item in items_of(output) if any(mapping(item).get(name) is not None for name in _TOKENS)]
    if not items:
        raise SequenceError(
            "the rollout has no token ids: set return_token_id_information: true on the model server of the policy"
        )
    sequences: list[_Growing] = []
    for number, item in enumerate(items, 1):
        turn = _read_turn(item, f"turn {number} of {len(items)}", rules)
        if not sequences or not sequences[-1].is_continued_by(turn):
            sequences.append(_Growing(turn.prompt, turn.temperature))
        sequences[-1].append(turn)
    return [growing.finished() for growing in sequences]


@dataclass(frozen=True, slots=True)
class _Turn:
    prompt: list[int]
    generated: list[int]
    log_probs: list[float]
    mask: int
    reweighted: int
    versions: list[str | None]
    temperature: float


def _read_turn(item: Json, name: str, rules: SequenceRules) -> _Turn:
    prompt: Any = item.get("prompt_token_ids")
    generated: Any = item.get("generation_token_ids")
    if not prompt or not are_ids(prompt):
        raise SequenceError(f"{name} has prompt_token_ids that are not a list of token ids: {str(prompt)[:100]}")
    log_probs: Any = item.get("generation_log_probs")
    if error := invalid_numbers(generated, log_probs):
        raise SequenceError(f"{name} {error}")
    trace = item.get("token_trace")
    sampling = trace.get("sampling") if isinstance(trace, dict) else None
    sampling = sampling if isinstance(sampling, dict) else {}
    mask, reweighted = 1, 0
    if not sampling and rules.assumed_temperature is not None:
        temperature = rules.assumed_temperature
    else:
        if reason := why_not_policy_logprobs(item):
            mask, reweighted = _treatment(item, f"{name} cannot be trained on: {reason}", rules)
        temperature = temperature_of(sampling) if mask else 1.0
    versions = _versions(sampling, len(generated), name)
    return _Turn(prompt, generated, log_probs, mask, reweighted, versions, temperature)


def _treatment(item: Json, problem: str, rules: SequenceRules) -> tuple[int, int]:
    """Return loss mask and reweighting of a constrained turn."""
    if rules.constrained_turns == "refuse":
        raise SequenceError(
            f"{problem}. Change the request so that nothing constrains it (strict_tools: false, tool_choice: auto), or "
            "choose constrained_turns: mask or reweight"
        )
    usable = rules.constrained_turns == "reweight" and has_sampled_log_probs(item)
    return (1, 1) if usable else (0, 0)


def _versions(sampling: Json, count: int, name: str) -> list[str | None]:
    versions: list[Any] = [sampling.get("policy_version")] * count
    spans = sampling.get("weight_versions")
    for span in () if spans is None else spans if isinstance(spans, list) else [spans]:
        found = mapping(span)
        start, end = whole_number(found.get("start", 0), least=0), whole_number(found.get("end", count), least=0)
        if not found or start is None or end is None or start > end:
            raise SequenceError(f"{name} has weight_versions {str(spans)[:100]}; expected a list of spans")
        versions[start:end] = [found.get("version")] * len(versions[start:end])
    if wrong := [version for version in versions if not isinstance(version, str | None)]:
        raise SequenceError(f"{name} has policy_version {str(wrong[0])[:100]}; expected a string")
    return versions


@dataclass(slots=True)
class _Growing:
    prompt: list[int]
    temperature: float
    is_masked: bool = True
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reweighted: list[int] = field(default_factory=list)
    versions: list[str | None] = field(default_factory=list)

    def is_continued_by(self, turn: _Turn) -> bool:
        before = len(self.prompt)
        return (
            (self.is_masked or not turn.mask or turn.temperature == self.temperature)
            and turn.prompt[:before] == self.prompt
            and turn.prompt[before : before + len(self.tokens)] == self.tokens
        )

    def append(self, turn: _Turn) -> None:
        if turn.mask:
            self.temperature, self.is_masked = turn.temperature, False
        between = turn.prompt[len(self.prompt) + len(self.tokens) :]
        count, generated = len(between), len(turn.generated)
        self.tokens += between + turn.generated
        self.mask += [0] * count + [turn.mask] * generated
        self.log_probs += [0.0] * count + list(map(float, turn.log_probs))
        self.reweighted += [0] * count + [turn.reweighted] * generated
        self.versions += [None] * count + turn.versions

    def finished(self) -> TrainingSequence:
        return TrainingSequence(
            self.prompt, self.tokens, self.mask, self.log_probs, self.reweighted, self.versions, self.temperature
        )


def check_temperature(sequence: TrainingSequence, expected: float, where: str) -> None:
    """Raise RunError unless a sequence was sampled at the temperature at which the trainer computes log-probabilities.
    `where`: in which settings it belongs.
    """
    if abs(sequence.temperature - expected) > 1e-6:
        raise RunError(
            f"a rollout was sampled at temperature {sequence.temperature:g}, but the trainer computes "
            f"log-probabilities at {expected:g}. Set it in {where}, and start vLLM with --logprobs-mode "
            "processed_logprobs"
        )


def trl_rollouts(sequences: Sequence[TrainingSequence]) -> dict[str, list[Any]]:
    """Return the columns that TRL's GRPOTrainer (1.16) expects from a `rollout_func`, one entry per sequence.

    `env_mask` is 1 for tokens of the policy and 0 for those of the environment.
    """
    return {
        "prompt_ids": [sequence.prompt_ids for sequence in sequences],
        "completion_ids": [sequence.completion_ids for sequence in sequences],
        "logprobs": [sequence.log_probs for sequence in sequences],
        "env_mask": [sequence.loss_mask for sequence in sequences],
    }


def training_traces(sequences: Sequence[TrainingSequence]) -> list[Json]:
    """Return OpenEnv's TrainingTrace (version 1) of each sequence; `node_id` is the sequence's index."""
    return [
        {
            "node_id": str(index),
            "prompt_token_ids": sequence.prompt_ids,
            "completion_token_ids": sequence.completion_ids,
            "per_token_logps": sequence.log_probs,
            "loss_mask": sequence.loss_mask,
        }
        for index, sequence in enumerate(sequences)
    ]
