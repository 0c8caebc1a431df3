"""Decides what counts as a score: which rewards are valid, and which rows are measured.

A reward must be finite and at most `MAX_REWARD` in magnitude. Rollyard's own environments declare this bound as a field
constraint (services/types.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.io.json_values import is_number
from rollyard.services.types import MAX_REWARD, Json

MASKED = "masked"
"""Kind of a row that was masked without a reason."""
_FLAGS = ("mask_sample", "judge_failsafe", "_ng_no_persist")
_KINDS = ("failure_kind", "_ng_failure_class")
MASK_KEYS = (*_FLAGS, *_KINDS, "instance_config")
"""Keys by which a server of any framework says that a row's reward is no measurement, whatever its value."""
_MASK = re.compile("|".join(f'"{name}"' for name in MASK_KEYS).encode())
EXPECTED = f"expected a finite number of at most {MAX_REWARD:g}"


def is_reward(value: Any) -> bool:
    """Return whether `value` is a finite number of at most `MAX_REWARD` in magnitude. JSON's true is not a number."""
    return is_number(value, MAX_REWARD)


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
