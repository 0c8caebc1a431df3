"""All metrics of a training step, by the names of metrics.jsonl. docs/training.md has their definitions."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rollyard.training.groups import GroupMember, Treatment
from rollyard.training.step_files import sampled_updates
from rollyard.training.update import Batch, Update

_MEASURED = (Treatment.PLAYED, Treatment.MASKED)


NO_UPDATE = Update((), (), ())


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Durations of the parts of a step, in seconds."""

    rollout_wait_s: float
    """Waiting for the rollouts."""
    update_s: float
    """Forward and backward passes, and the optimizer."""
    publish_s: float
    """Until all engines had the new weights."""
    step_s: float
    """The whole step. Evaluations and checkpoints are not part of it."""


def step_metrics(
    batch: Batch,
    trainer: Mapping[str, float],
    times: StepTimes,
    *,
    parity: Mapping[str, float] | None = None,
    update: Update = NO_UPDATE,
) -> dict[str, float]:
    """Return the metrics of a step by their complete names, such as `train/reward`. One that is undefined is absent.

    `trainer`: figures of the update, as in RolloutTrainer.update_metrics. `parity`: `mean` and `max` of a ParityProbe;
    they replace those of the update, whose rollouts may be older than the weights. `update`: what was trained on.

    Raises RunError if the version of the weights behind a token is unknown.
    """
    measured = [member for group in batch.groups for member in group.members if member.treatment in _MEASURED]
    count = len(update.sequences) + update.too_long
    train = {
        **_rewards(measured),
        **_completions(measured),
        **_groups(batch),
        **({"seq_too_long_rate": update.too_long / count} if count else {}),
        **_staleness(measured, batch.step),
        **trainer,
        **{f"parity_{name}": value for name, value in (parity or {}).items()},
    }
    perf = _perf(measured, times)
    return {f"train/{name}": value for name, value in train.items()} | {f"perf/{name}": perf[name] for name in perf}


def _rewards(measured: Sequence[GroupMember]) -> dict[str, float]:
    if not measured:
        return {}
    rewards = [member.reward for member in measured]
    # A part that a rollout lacks is 0, so that the parts add up to the reward.
    parts = dict.fromkeys((name for member in measured for name in member.components), 0.0)
    for name in parts:
        parts[name] = math.fsum(member.components.get(name, 0.0) for member in measured) / len(measured)
    found = {"reward": statistics.fmean(rewards), **{f"reward/{name}": value for name, value in parts.items()}}
    if len(rewards) > 1:
        found["reward_std"] = statistics.stdev(rewards)
    if any(member.success is not None for member in measured):
        found["correct_rate"] = sum(member.success is True for member in measured) / len(measured)
    return found


def _completions(measured: Sequence[GroupMember]) -> dict[str, float]:
    if not measured:
        return {}
    tokens = sum(member.completion_tokens for member in measured)
    endings = Counter(member.ending for member in measured)
    return {
        "parse_err_rate": sum(member.parse_error for member in measured) / len(measured),
        "avg_completion_length": tokens / len(measured),
        "total_completion_tokens": tokens,
        **{f"ending/{name}": count / len(measured) for name, count in endings.items()},
    }


def _groups(batch: Batch) -> dict[str, float]:
    found: dict[str, float] = {
        "failed_rollouts": sum(batch.failures.values()),
        **{f"failed_rollouts/{kind}": count for kind, count in batch.failures.items()},
        "skipped_groups": sum(group.skipped is not None for group in batch.groups),
    }
    if batch.groups:
        equal = sum(group.skipped == "zero_variance" for group in batch.groups)
        found["zero_variance_rate"] = equal / len(batch.groups)
    return found


def _staleness(measured: Sequence[GroupMember], step: int) -> dict[str, float]:
    """The step with number `step` trains the weights of step - 1."""
    updates = sampled_updates(sequence for member in measured for sequence in member.sequences)
    if not (total := updates.total()):
        return {}
    lags = {step - 1 - count: tokens for count, tokens in updates.items()}
    return {
        "stale_rate": sum(tokens for lag, tokens in lags.items() if lag) / total,
        "staleness_mean": sum(lag * tokens for lag, tokens in lags.items()) / total,
        "policy_lag": max(lags),
    }


def _perf(measured: Sequence[GroupMember], times: StepTimes) -> dict[str, float]:
    found = asdict(times)
    if times.step_s > 0:
        found["tokens_per_s"] = sum(member.completion_tokens for member in measured) / times.step_s
        found["rollouts_per_s"] = len(measured) / times.step_s
    return found
