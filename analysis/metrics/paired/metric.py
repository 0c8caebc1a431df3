"""Names of the metrics that two runs can be compared by, and their values for each rollout."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollyard.analysis.metrics.consensus import MOST_K, answers_of
from rollyard.analysis.metrics.loader.columns import Floats
from rollyard.analysis.metrics.profile import Run
from rollyard.records.errors import OperatorError
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.types import MAX_REWARD

SOLVE_RATE, REWARD = "solve_rate", "reward"
COLUMNS = ("tool_calls", "turns", "input_tokens", "output_tokens", "reasoning_tokens")
SECONDS = "seconds"
_AT_K = re.compile(r"(pass|cons)@([1-9][0-9]{0,5})")


@dataclass(frozen=True)
class Metric:
    """A metric of tasks: a mean over a task's rollouts, or pass@k or cons@k."""

    name: str

    @property
    def k(self) -> int | None:
        """The k of pass@k and cons@k; None for a mean over rollouts."""
        found = _AT_K.fullmatch(self.name)
        return None if found is None else int(found[2])

    @property
    def votes(self) -> bool:
        """Whether this is cons@k."""
        return self.k is not None and self.name.startswith("cons")

    @property
    def is_share(self) -> bool:
        """Whether the values of tasks are in 0..1."""
        return self.name == SOLVE_RATE or self.k is not None

    @property
    def is_cost(self) -> bool:
        """Whether a lower value is better."""
        return self.name in (*COLUMNS, SECONDS)


def of_rollouts(run: Run, metric: Metric) -> Floats:
    """Return the metric of each measured rollout, NaN if it is missing. For pass@k and cons@k: whether it is solved.

    Any other name than the known ones is a key of the rows, such as `strict_score` or `reward_components.format`.
    Raises OperatorError if no row has a number under that key, or if the metric is undefined for the run.
    """
    if metric.name == REWARD:
        return run.columns.reward
    if metric.name == SOLVE_RATE or metric.k is not None:
        if run.solved is None:
            raise OperatorError(
                f"{metric.name} is undefined for {run.profile.name}: it is unknown which rollouts solved their task. "
                "Pass --pass-threshold ..., or compare --metric reward"
            )
        if metric.votes and answers_of(run.columns) is None:
            raise OperatorError(
                f"{metric.name} is undefined for {run.profile.name}: its rows have no extracted_answer. Choose another "
                "metric, such as pass@k"
            )
        if metric.votes and (metric.k or 0) > MOST_K:
            raise OperatorError(f"{metric.name} is not computed: expected a k of at most {MOST_K}")
        return run.solved.astype(float)
    if metric.name in COLUMNS:
        values: Floats = getattr(run.columns, metric.name)
    elif metric.name == SECONDS:
        values = run.columns.stages.get("total", np.full(len(run.columns), np.nan))
    else:
        values = np.full(len(run.columns), np.nan) if run.file is None else _row_values(run.file, metric.name, run)
    if np.isnan(values).all():
        raise OperatorError(
            f"no row of {run.profile.path} has a number under {metric.name!r}; expected solve_rate, reward, pass@k, "
            f"cons@k, {', '.join(COLUMNS)}, {SECONDS}, or a key of the rows"
        )
    return values


def _row_values(path: Path, key: str, run: Run) -> Floats:
    """Read a key from all rows. A boolean counts as 0 or 1; nested keys are separated by dots."""
    offset = run.columns.offset
    order = np.argsort(offset)
    values, ordered = np.full(len(offset), np.nan), offset[order].tolist()
    position, parts = 0, key.split(".")
    for line in iter_jsonl(path, skip):
        if position < len(ordered) and ordered[position] == line.offset:
            value: object = line.value.get(key)
            if value is None:
                value = line.value
                for part in parts:
                    value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, int | float) and abs(value) <= MAX_REWARD:
                values[order[position]] = float(value)
            position += 1
    return values
