"""What counts as a reward: a finite number, nothing else, checked wherever one arrives."""

from __future__ import annotations

import math

from services.errors import Failure, FailureKind
from services.types import Json


def check_reward(answer: Json, endpoint: str, server: str) -> None:
    """Raises Failure malformed_answer, blaming `server`, unless `answer` carries a finite number as reward."""
    reward = answer.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        detail = f"{endpoint} answered reward {reward!r}; expected a finite number"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)
