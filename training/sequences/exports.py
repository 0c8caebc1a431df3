"""Training sequences in the formats of other trainers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.records.types import Json
from rollyard.training.sequences.training_sequence import TrainingSequence


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


def rollout_sample_fields(
    sequence: TrainingSequence, advantage: float, version: int, group: int, metrics: dict[str, float]
) -> Json:
    """Return the fields of a `RolloutSample` of TRL's AsyncGRPOTrainer (1.16). Its lists cover prompt and completion.

    `version`: number of the oldest policy version in the sequence, counted by the trainer. `metrics`: values that the
    trainer logs, such as the reward. The texts stay empty: TRL only prints them.
    """
    prompt = len(sequence.prompt_ids)
    return {
        "prompt": [],
        "completion": [],
        "input_ids": sequence.prompt_ids + sequence.completion_ids,
        "completion_mask": [0] * prompt + sequence.loss_mask,
        "old_log_probs": [0.0] * prompt + sequence.loss_log_probs,
        "advantage": advantage,
        "model_version": version,
        "group_id": group,
        "metrics": metrics,
    }
