"""What counts as a reward: a finite number of bounded size, nothing else, checked wherever one arrives."""

from __future__ import annotations

from typing import Any

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.types import Json

MOST = 1e60
"""Beyond it squares and sums of rewards are not finite any more."""


def is_reward(value: Any) -> bool:
    """True for a finite number up to `MOST`. JSON's true is not a number."""
    return type(value) in (int, float) and -MOST <= value <= MOST


def check_reward(answer: Json, endpoint: str, server: str) -> None:
    """Raises Failure malformed_answer, blaming `server`, unless `answer` carries a finite number as reward."""
    reward = answer.get("reward")
    if not is_reward(reward):
        detail = f"{endpoint} answered reward {reward!r:.100}; expected a finite number of at most {MOST:g}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)
