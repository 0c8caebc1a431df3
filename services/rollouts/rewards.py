"""Validates rewards from external sources: `/verify` responses and files.

A reward must be finite and at most `MAX_REWARD` in magnitude. Rollyard's own environments declare this bound as a field
constraint (services/types.py).
"""

from __future__ import annotations

from typing import Any

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.io.json_values import is_number
from rollyard.services.types import MAX_REWARD, Json

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
