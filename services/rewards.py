"""What counts as a reward: a finite number, nothing else, checked wherever one arrives."""

from __future__ import annotations

import math
from typing import Any

from services.errors import Failure, FailureKind
from services.types import Json


def is_reward(value: Any) -> bool:
    """True for a finite number. JSON's true and numbers of more than 308 digits are none."""
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def check_reward(answer: Json, endpoint: str, server: str) -> None:
    """Raises Failure malformed_answer, blaming `server`, unless `answer` carries a finite number as reward."""
    reward = answer.get("reward")
    if not is_reward(reward):
        detail = f"{endpoint} answered reward {reward!r:.100}; expected a finite number"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)
