"""Turns the scores of inspect_ai's scorers into a verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.resources_servers.base import Verdict
from rollyard.resources_servers.inspect_task.settings import InspectSettings

_RIGHT, _WRONG = "C", "I"


def verdict_of(
    scores: Mapping[str, Any], settings: InspectSettings, to_float: Callable[[Any], float], *, finished: bool
) -> Verdict:
    """Return the verdict. Raises Failure if the scorer that gives the reward could not score the episode."""
    name = settings.scorer or next(iter(scores))
    score = scores[name]
    if score is None:
        raise Failure(FailureKind.MALFORMED_ANSWER, f"the scorer {name} gave no score (None), which is not a reward")
    reward = _number(score.value, name, settings.score_key, to_float)
    more: Json = {} if score.answer is None else {"extracted_answer": score.answer}
    if score.value in (_RIGHT, _WRONG) or isinstance(score.value, bool):
        more["success"] = reward == 1.0
    recorded = {key: _recorded(value) for key, value in scores.items() if value is not None}
    return Verdict(reward=reward, scores=recorded, solver_finished=finished, **more)


def _number(value: Any, name: str, key: str | None, to_float: Callable[[Any], float]) -> float:
    if isinstance(value, Mapping):
        if key is not None and key not in value:
            found = ", ".join(map(str, value)) or "none"
            raise Failure(FailureKind.BAD_TASK, f"the score of {name} has no key {key!r} (score_key); found {found}")
        values = [value[key]] if key is not None else list(value.values())
    else:
        values = list(value) if isinstance(value, list | tuple) else [value]
    numbers = [to_float(each) for each in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        detail = f"the scorer {name} gave no score ({value!r:.100}), which is not a reward"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail)
    return sum(numbers) / len(numbers)


def _recorded(score: Any) -> Json:
    fields = {"value": score.value, "answer": score.answer, "explanation": score.explanation}
    if isinstance(score.value, float) and not math.isfinite(score.value):
        fields["value"] = None
    return {key: value for key, value in fields.items() if value is not None}
