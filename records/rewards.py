"""Decides what counts as a score: which rewards are valid, and which rows are measured.

A reward must be finite and at most `MAX_REWARD` in magnitude. Rollyard's own environments declare this bound as a field
constraint (records/types.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import is_number
from rollyard.records.types import MAX_REWARD, Json
from rollyard.records.verdict_fields import VERDICT_FIELDS

MASKED = "masked"
"""Kind of a row that was masked without a reason."""
_FLAGS = ("mask_sample", "judge_failsafe", "_ng_no_persist")
_KINDS = ("failure_kind", "_ng_failure_class")
MASK_KEYS = (*_FLAGS, *_KINDS, "instance_config")
"""Keys by which a server of any framework says that a row's reward is no measurement, whatever its value."""
_MASK = re.compile("|".join(f'"{name}"' for name in MASK_KEYS).encode())
RENAMED = "_ng_renamed"
"""Key of a row whose task and verdict have keys in common: maps each of them to the key that was used instead."""
SCORES = frozenset({"reward", "success", "extracted_answer", "reward_components", "parse_error"})
"""Keys whose values are counted. Only a verdict sets them."""
_VERDICTS_OWN = frozenset({"responses_create_params", "response", "agent_ref", "token_trail", *MASK_KEYS})
"""Other keys that a verdict may set although the row has them, because servers of other frameworks echo the row."""
EXPECTED = f"expected a finite number of at most {MAX_REWARD:g}"


def is_reward(value: Any) -> bool:
    """Return whether `value` is a finite number of at most `MAX_REWARD` in magnitude. JSON's true is not a number."""
    return is_number(value, MAX_REWARD)


def tidy(value: Any) -> Any:
    """Return a sum of decimal fractions as such: 0.7 for 0.7000000000000002. Any other number is returned unchanged."""
    if not isinstance(value, float):
        return value
    rounded = round(value, 9) + 0.0
    noise = max(1e-12, 1e-14 * abs(value)) if rounded else 1e-14
    return rounded if abs(rounded - value) <= noise else value


def check_reward(answer: Json, endpoint: str, server: str) -> None:
    """Raise Failure malformed_answer, attributed to `server`, unless the reward in `answer` is a finite number."""
    reward = answer.get("reward")
    if not is_reward(reward):
        detail = f"{endpoint} returned reward {reward!r:.100}; {EXPECTED}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)


def mask_of(row: Mapping[str, Any]) -> str:
    """Return why the row's reward is no measurement, as a failure kind; empty if the row is not masked."""
    if row.keys().isdisjoint(MASK_KEYS):
        return ""
    config = row.get("instance_config")
    flagged = any(row.get(name) for name in _FLAGS)
    if flagged or (isinstance(config, dict) and config.get("mask_sample")):
        return MASKED
    found = next((kind for name in _KINDS if (kind := row.get(name))), "")
    return found if isinstance(found, str) else MASKED


def is_masked_line(line: bytes) -> bool:
    """Return whether the row on this line of a rollout file is masked. Parses only lines that may be."""
    if not _MASK.search(line):
        return False
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and bool(mask_of(row))


def is_measured(row: Mapping[str, Any]) -> bool:
    """Return whether the row is a measured rollout: it has a valid reward, and nothing in it says that this is none.

    Every count, mean and training step uses this rule, for rows of this stack and of others.
    """
    return is_reward(row.get("reward")) and not mask_of(row)


def with_verdict(row: Mapping[str, Any], played: Mapping[str, Any], verdict: Mapping[str, Any]) -> Json:
    """Return the result of an episode: `played`, which is the task's `row` with what was played, and the verdict.

    A value of the row is never replaced by the verdict's: that one is stored as `verdict_<key>`. Nor does a value of
    the row count as a score: it is stored as `row_<key>`. If the row itself is a finished rollout, its old verdict is
    replaced, and so is what masked it.
    """
    if row.keys().isdisjoint(verdict) and row.keys().isdisjoint(SCORES):
        return {**played, **verdict}
    is_finished = "reward" in row and isinstance(row.get("response"), dict)
    known = row.get(RENAMED)
    renamed: dict[str, str] = dict(known) if is_finished and isinstance(known, dict) else {}
    merged = dict(played)
    if is_finished:
        for name in (*_FLAGS, *_KINDS):
            merged.pop(name, None)
        if isinstance(config := merged.get("instance_config"), dict):
            merged["instance_config"] = {key: config[key] for key in config.keys() - {"mask_sample", "mask_reason"}}
    for name in sorted(SCORES & row.keys()):
        value = merged.pop(name, None)
        if not is_finished:
            renamed[name] = _free(f"row_{name}", row, verdict)
            merged[renamed[name]] = value
    for name, value in verdict.items():
        if name in renamed and name != "reward" and "response" in verdict and row.get(name) == value:
            continue  # a server of another framework echoes the row
        keeps = name in row and name not in SCORES and name not in _VERDICTS_OWN and not name.startswith("_ng_")
        if keeps and not is_finished and row[name] != value:
            renamed[name] = _free(f"verdict_{name}", row, verdict)
        replaces = name in SCORES or name not in renamed
        merged[name if replaces else renamed[name]] = value
    if renamed:
        merged[RENAMED] = renamed
        if isinstance(declared := merged.get(VERDICT_FIELDS), list):
            merged[VERDICT_FIELDS] = [_moved(field, renamed) for field in declared]
    return merged


def _moved(field: Any, renamed: Mapping[str, str]) -> Any:
    """Return the declaration of a verdict's field with the name under which the row has it."""
    path = field.get("path") if isinstance(field, dict) else None
    top, dot, rest = path.partition(".") if isinstance(path, str) else ("", "", "")
    name = renamed.get(top, top)
    return field if name == top or top in SCORES else {**field, "path": f"{name}{dot}{rest}"}


def _free(name: str, row: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    while name in row or name in verdict:
        name += "_"
    return name
