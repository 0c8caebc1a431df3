"""All metrics of a training step, by the names of metrics.jsonl. docs/training.md has their definitions."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rollyard.records.errors import RunError
from rollyard.training.groups import GroupMember, Treatment
from rollyard.training.run_folder import updates_of
from rollyard.training.update import Batch, Update

_MEASURED = (Treatment.PLAYED, Treatment.MASKED)


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
    update: Update | None = None,
) -> dict[str, float]:
    """Return the metrics of a step by their complete names, such as `train/reward`. One that is undefined is absent.

    `trainer`: figures of the update, as in RolloutTrainer.update_metrics. `parity`: `mean` and `max` of a ParityProbe;
    they replace those of the update, whose rollouts may be older than the weights. `update`: what was trained on.

    Raises RunError if the version of the weights behind a token is unknown.
    """
    members = [member for group in batch.groups for member in group.members]
    measured = [member for member in members if member.treatment in _MEASURED]
    train = {
        **_rewards(measured),
        **_completions(measured),
        **_groups(batch),
        **_sequences(update),
        **_staleness(measured, batch.step),
        **trainer,
        **{f"parity_{name}": value for name, value in (parity or {}).items()},
    }
    perf = _perf(measured, times)
    return {f"train/{name}": value for name, value in train.items()} | {
        f"perf/{name}": value for name, value in perf.items()
    }


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
        found["correct_rate"] = _share(sum(member.success is True for member in measured), measured)
    return found


def _completions(measured: Sequence[GroupMember]) -> dict[str, float]:
    if not measured:
        return {}
    tokens = sum(member.completion_tokens for member in measured)
    endings = Counter(member.ending for member in measured)
    return {
        "parse_err_rate": _share(sum(member.parse_error for member in measured), measured),
        "avg_completion_length": tokens / len(measured),
        "total_completion_tokens": tokens,
        **{f"ending/{name}": _share(count, measured) for name, count in endings.items()},
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


def _sequences(update: Update | None) -> dict[str, float]:
    count = 0 if update is None else len(update.sequences) + update.too_long
    return {"seq_too_long_rate": update.too_long / count} if update is not None and count else {}


def _staleness(measured: Sequence[GroupMember], step: int) -> dict[str, float]:
    tokens = staleness_of(measured, step)
    if not (total := tokens.total()):
        return {}
    return {
        "stale_rate": (total - tokens[0]) / total,
        "staleness_mean": sum(lag * count for lag, count in tokens.items()) / total,
        "policy_lag": max(tokens),
    }


def _perf(measured: Sequence[GroupMember], times: StepTimes) -> dict[str, float]:
    found = {
        "rollout_wait_s": times.rollout_wait_s,
        "update_s": times.update_s,
        "publish_s": times.publish_s,
        "step_s": times.step_s,
    }
    if times.step_s > 0:
        found["tokens_per_s"] = sum(member.completion_tokens for member in measured) / times.step_s
        found["rollouts_per_s"] = len(measured) / times.step_s
    return found


def _share(count: int, measured: Sequence[GroupMember]) -> float:
    return count / len(measured)


def staleness_of(members: Iterable[GroupMember], step: int) -> Counter[int]:
    """Count the tokens with a loss by their staleness. The step with number `step` trains the weights of step - 1.

    Raises RunError if the version of a token is unknown or newer than these weights: without it, nobody can tell
    whether the rollouts are those of the policy that is trained.
    """
    versions: Counter[str] = Counter()
    for member in members:
        for sequence in member.sequences:
            for version, has_loss in zip(sequence.versions, sequence.loss_mask, strict=True):
                if has_loss:
                    if version is None:
                        raise RunError(_unknown(member))
                    versions[version] += 1
    found: Counter[int] = Counter()
    for version, tokens in versions.items():
        lag = step - 1 - updates_of(version)
        if lag < 0:
            raise RunError(
                f"step {step} trains the weights of step {step - 1}, but {tokens} tokens of its rollouts were sampled "
                f"with {version}: the rollouts are not those of this run, or it resumed from an older checkpoint "
                "without discarding them"
            )
        found[lag] += tokens
    return found


def _unknown(member: GroupMember) -> str:
    return (
        f"task {member.task_key}, rollout {member.repeat}: the version of the weights that sampled its tokens is "
        "unknown, so that its staleness is, too. Use engines that report policy_version, such as those of "
        "local_vllm_model"
    )
