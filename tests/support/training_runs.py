"""Folders of training runs, with metrics like those of a real run."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path

import orjson

from rollyard.records.types import Json
from rollyard.training.metrics_log import MetricsLog
from rollyard.training.run_folder import TrainingPaths


def training_run(
    folder: Path, steps: int, rows: Iterable[Json] = (), *, seed: int = 0, every: int = 10, kept: int | None = None
) -> TrainingPaths:
    """Write a run with `steps` updates and an evaluation after `every` of them. `rows`: the rollouts of each of the
    last `kept` steps (default: of all) and of each evaluation.
    """
    paths = TrainingPaths(folder)
    log, numbers = MetricsLog(paths.metrics), random.Random(seed)
    lines = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    paths.rollouts(0).parent.mkdir(parents=True)
    paths.evaluation(0).parent.mkdir(parents=True)
    start = {"time": 1.7e9, "host": "gpu-1", "command": ["ng_train", "train.yaml"], "state": "complete"}
    paths.run_record.write_bytes(orjson.dumps({"name": "run", "starts": [start]}))
    for step in range(steps + 1):
        if step:
            log.write(step, step_values(step, numbers))
            if kept is None or step > steps - kept:
                paths.rollouts(step).write_bytes(lines)
        if step % every == 0:
            log.write(step, {"eval/correct_rate": 0.2 + 0.5 * learned(step), "eval/reward": 3 * learned(step)})
            paths.evaluation(step).write_bytes(lines)
    return paths


def learned(step: int) -> float:
    return 1 - math.exp(-step / 30)


def step_values(step: int, numbers: random.Random) -> dict[str, float]:
    """The metrics of a step: a reward that rises, an entropy that falls, and noise."""
    noise = numbers.gauss(0, 0.05)
    correct = min(1.0, max(0.0, 0.15 + 0.6 * learned(step) + noise))
    return {
        "train/reward": correct + 0.1 * (1 - 0.5 * noise),
        "train/reward/correct": correct,
        "train/reward/format": 0.1 * (1 - 0.5 * noise),
        "train/reward_std": math.sqrt(correct * (1 - correct)),
        "train/correct_rate": correct,
        "train/parse_err_rate": max(0.0, 0.2 - 0.2 * learned(step) + noise / 5),
        "train/avg_completion_length": 120 + 60 * learned(step) + 80 * noise,
        "train/total_completion_tokens": 256 * (120 + 60 * learned(step)),
        "train/ending/done": correct,
        "train/ending/max_steps": 1 - correct,
        "train/failed_rollouts": float(numbers.random() < 0.1),
        "train/skipped_groups": float(numbers.randrange(6)),
        "train/zero_variance_rate": numbers.randrange(6) / 32,
        "train/stale_rate": 0.0,
        "train/staleness_mean": 0.0,
        "train/policy_lag": 0,
        "train/loss": noise / 10,
        "train/entropy": 1.4 - 0.6 * learned(step) + noise / 3,
        "train/kl": abs(noise) / 50,
        "train/ratio_mean": 1 + noise / 1000,
        "train/ratio_max": 1.05 + abs(noise),
        "train/clip_rate": abs(noise) / 5,
        "train/grad_norm": 0.4 + abs(noise),
        "train/learning_rate": 1e-6 * min(1.0, step / 10),
        "train/parity_mean": 1e-5 + abs(noise) * 1e-6,
        "train/parity_max": 1e-4 + abs(noise) * 1e-3,
        "perf/rollout_wait_s": 8 + 10 * abs(noise),
        "perf/update_s": 3 + abs(noise),
        "perf/publish_s": 0.9,
        "perf/step_s": 12 + 11 * abs(noise),
        "perf/tokens_per_s": 2400 - 1000 * abs(noise),
        "perf/rollouts_per_s": 21 - 10 * abs(noise),
    }
