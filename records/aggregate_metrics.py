"""Computes the answer of `POST /aggregate_metrics`, in NeMo Gym's format, from the responses of `/verify`.

    agent_metrics        mean, max, min, median and std of each numeric field over all rollouts, and of the tokens used,
                         as `mean/reward`; `pass@k/accuracy` and `pass@1[avg-of-k]/accuracy` in percent
    group_level_metrics  the same for each task, with its `_ng_task_index`, `num_rollouts` and `rollout_infos`
    key_metrics          the means and pass rates

Identifiers, such as a task's index or a seed, are not averaged. Values that are not finite, and rewards that are not
numbers, are left out and counted as `left_out/<field>`. Failed and masked rollouts (`_ng_failure_class`,
`mask_sample`) are counted as `left_out/rollouts` and are part of nothing else.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence

from rollyard.records.rewards import mask_of
from rollyard.records.types import Json

TASK_INDEX = "_ng_task_index"
ROLLOUT_INDEX = "_ng_rollout_index"
_ID_WORDS = frozenset({"id", "ids", "uid", "qid", "pid", "uuid", "guid", "idx", "index", "seed", "timestamp"})
_NUMBERING = frozenset({"row", "line", "task", "problem", "question", "sample", "level"})
"""What `row_number` and the like number, so that they identify something."""
_NOT_MEASURED = frozenset({"created", "created_at"})
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
_LIMIT = 1e150
"""Largest magnitude whose square is finite."""


def aggregate(responses: Sequence[Json]) -> Json:
    rows = [row for row in responses if not mask_of(row)]
    failed = {"left_out/rollouts": len(responses) - len(rows)} if len(rows) < len(responses) else {}
    if not rows:
        return {"agent_metrics": failed, "key_metrics": {}, "group_level_metrics": []}
    values = [_numbers(row) for row in rows]
    tasks: dict[int, list[int]] = {}
    for position, row in enumerate(rows):
        tasks.setdefault(_integer(row.get(TASK_INDEX)), []).append(position)
    overall = {**_statistics(values), **_pass_rates([[rows[at] for at in members] for members in tasks.values()])}
    groups = [
        {
            **_statistics([values[at] for at in members]),
            TASK_INDEX: task,
            "num_rollouts": len(members),
            "rollout_infos": [_info(rows[at], values[at]) for at in members],
        }
        for task, members in sorted(tasks.items())
    ]
    key = {name: value for name, value in overall.items() if name.startswith(("mean/", "pass@"))}
    return {"agent_metrics": {**overall, **failed}, "key_metrics": key, "group_level_metrics": groups}


def is_identifier(name: str) -> bool:
    """Return True for a field that names something, so that its mean has no meaning."""
    words = [word.lower() for word in _WORDS.findall(name)]
    is_numbering = words[-1:] == ["number"] and words[-2:-1] and words[-2] in _NUMBERING
    return name.startswith("_") or name in _NOT_MEASURED or bool(is_numbering) or not _ID_WORDS.isdisjoint(words[-1:])


def _numbers(row: Json) -> dict[str, float]:
    response = row.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    fields = {**row, **(usage if isinstance(usage, dict) else {})}
    missing = {} if isinstance(row.get("reward"), int | float) else {"reward": math.nan}
    return missing | {
        name: float(value)
        for name, value in fields.items()
        if isinstance(value, int | float) and not is_identifier(name)
    }


def _info(row: Json, values: dict[str, float]) -> Json:
    task, rollout = _integer(row.get(TASK_INDEX)), _integer(row.get(ROLLOUT_INDEX))
    finite = {name: value for name, value in values.items() if _is_usable(value)}
    return {"rollout_id": f"{task}:{rollout}", TASK_INDEX: task, ROLLOUT_INDEX: rollout, **finite}


def _statistics(values: Iterable[dict[str, float]]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    left_out: dict[str, int] = {}
    for row in values:
        for name, value in row.items():
            if _is_usable(value):
                columns.setdefault(name, []).append(value)
            else:
                left_out[name] = left_out.get(name, 0) + 1
    found: dict[str, float] = {}
    for name, column in columns.items():
        found[f"mean/{name}"] = mean = math.fsum(column) / len(column)
        found[f"max/{name}"] = max(column)
        found[f"min/{name}"] = min(column)
        found[f"median/{name}"] = statistics.median(column)
        squares = math.fsum((value - mean) ** 2 for value in column)
        found[f"std/{name}"] = math.sqrt(squares / (len(column) - 1)) if len(column) > 1 else 0.0
    return {**found, **{f"left_out/{name}": count for name, count in left_out.items()}}


def _pass_rates(tasks: Sequence[Sequence[Json]]) -> dict[str, float]:
    """Return pass@k, the unbiased estimator of Chen et al. 2021 (arXiv:2107.03374), and the mean over the first k.

    A rollout passes if the environment's `success` is true or, if no row has it, if its reward is 1. Rollouts without
    the field are left out. There are no rates if rewards other than 0 and 1 occur without a `success`.
    """
    rows = [row for task in tasks for row in task]
    field = "success" if any(isinstance(row.get("success"), bool) for row in rows) else "reward"
    passed: list[list[float]] = []
    for task in tasks:
        found = [row.get(field) for row in sorted(task, key=lambda row: _integer(row.get(ROLLOUT_INDEX)))]
        if values := [value for value in found if isinstance(value, int | float) and not math.isnan(value)]:
            passed.append(values)
    if not passed or any(value not in (0, 1) for task in passed for value in task):
        return {}
    rates: dict[str, float] = {}
    totals = [sum(flags) for flags in passed]
    none_of_k, passed_of_k = [1.0] * len(passed), [0.0] * len(passed)
    for k in range(1, max(map(len, passed)) + 1):
        reach = [(at, flags) for at, flags in enumerate(passed) if len(flags) >= k]
        for at, flags in reach:
            left = len(flags) - k + 1
            none_of_k[at] *= max(left - totals[at], 0) / left
            passed_of_k[at] += flags[k - 1]
        shares = [count / min(k, len(flags)) for count, flags in zip(passed_of_k, passed, strict=True)]
        rates[f"pass@{k}/accuracy"] = 100.0 * math.fsum(1.0 - none_of_k[at] for at, _ in reach) / len(reach)
        rates[f"pass@1[avg-of-{k}]/accuracy"] = 100.0 * math.fsum(shares) / len(shares)
    return rates


def _integer(value: object) -> int:
    """Return an index. Some clients store it as a float or a text; as in NeMo Gym, a missing one is 0."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value[:18])
    return value if isinstance(value, int) else 0


def _is_usable(value: float) -> bool:
    return abs(value) <= _LIMIT  # false for NaN as well
