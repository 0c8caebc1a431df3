"""Computes a reward from weighted parts.

    RUBRIC = Rubric(correct=(1.0, check_answer), format=(0.2, has_box), success="correct")

    async def verify(self, response: Verification) -> Verdict:
        return await RUBRIC.verdict(self, response)

A part is a function of the subject (the first argument of `verdict`: the environment, or its task) and the
Verification. It returns a score from 0 to 1, a boolean, or a `Score` with fields for the rollout. It may be async.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rollyard.records.errors import Failure, FailureKind, OperatorError, did_you_mean
from rollyard.records.types import MAX_REWARD, Json, Verdict
from rollyard.resources_servers.environment import BadTask, Verification

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Score:
    """A part's score, with additional fields that are stored on the rollout."""

    value: float
    fields: Json = field(default_factory=dict)
    as_penalty: float | None = None
    """The score to use if the weight is negative; None if it is the same. An answer that could not be scored gets the
    worst score, which is 0 if the weight is positive and 1 if it is negative."""


Scored = float | bool | Score
Part = Callable[[Any, Verification], Scored | Awaitable[Scored]]

_OWN = frozenset({"reward", "reward_components", "scores", "success"})


class Rubric:
    """Weighted parts, checked on construction. With weight 0, a part is only reported; a negative weight penalizes."""

    def __init__(self, *, success: str | float | None = None, **parts: tuple[float, Part]) -> None:
        """`success` is the part that must get the full score, or the lowest reward that counts as a success. If it is
        None, the verdict has no `success`.

        Raises OperatorError for a weight that is not a finite number, and for a `success` that is not a part's name.
        """
        if not parts:
            raise OperatorError("a Rubric needs at least one part: Rubric(correct=(1.0, check_answer))")
        for name, part in parts.items():
            if not (isinstance(part, tuple) and len(part) == 2 and callable(part[1])):
                raise OperatorError(f"the Rubric's part {name!r} is {part!r:.200}; expected (weight, function)")
            if not _is_number(part[0]):
                raise OperatorError(f"the Rubric's part {name!r} has the weight {part[0]!r}; expected a finite number")
        if isinstance(success, str) and success not in parts:
            hint = did_you_mean(success, parts)
            raise OperatorError(f"the Rubric's success is {success!r}, not one of its parts{hint} ({', '.join(parts)})")
        if not isinstance(success, str | None) and not _is_number(success):
            raise OperatorError(f"the Rubric's success is {success!r}; expected a part's name or a finite number")
        self._weights = {name: float(weight) for name, (weight, _) in parts.items()}
        self._parts = {name: part for name, (_, part) in parts.items()}
        self._success = success

    async def verdict(self, subject: Any, response: Verification, **fields: Any) -> Verdict:
        """Score the response. The reward is the sum of the weighted scores. `fields` are added to the verdict.

        The verdict contains `reward`, `reward_components` (weight times score; their sum is the reward), `scores` (each
        from 0 to 1), `success` if it was configured, and the fields of the parts' `Score`s. Raises Failure with the
        part's name if a part raises an exception or does not return a score.
        """
        scores = await self._scores(subject, response)
        components = {name: self._weights[name] * score.value + 0.0 for name, score in scores.items()}
        reward = sum(components.values())
        own: Json = {"reward_components": components, "scores": {name: one.value for name, one in scores.items()}}
        if isinstance(self._success, str):
            own["success"] = scores[self._success].value == 1.0
        elif self._success is not None:
            own["success"] = reward >= self._success
        return Verdict(reward=reward, **own, **_fields_of({"": Score(0.0, fields), **scores}))

    async def _scores(self, subject: Any, response: Verification) -> dict[str, Score]:
        tasks: list[asyncio.Task[Score]] = []
        try:
            tasks.extend(
                asyncio.create_task(_score(name, part, subject, response, penalty=self._weights[name] < 0))
                for name, part in self._parts.items()
            )
            return dict(zip(self._parts, await asyncio.gather(*tasks), strict=True))
        finally:
            for task in tasks:
                task.cancel()


async def _score(name: str, part: Part, subject: Any, response: Verification, *, penalty: bool) -> Score:
    try:
        found = part(subject, response)
        if inspect.isawaitable(found):
            found = await found
    except (Failure, BadTask):
        raise
    except (RecursionError, MemoryError, OverflowError) as error:
        # The model's answer determines the size of the input. A failure would give the model a second attempt.
        log.warning("part %r of the rubric raised %r: the answer scores %d", name, error, penalty)
        return Score(float(penalty))
    except (Exception, SystemExit) as error:
        log.exception("part %r of the rubric failed", name)
        detail = f"part {name!r} of the rubric raised {type(error).__name__}: {error}"
        raise Failure(FailureKind.SERVER_ERROR, detail) from error
    if isinstance(found, Score) and not isinstance(found.fields, dict):
        detail = f"part {name!r} of the rubric returned a Score with fields {found.fields!r:.100}; expected a dict"
        raise Failure(FailureKind.SERVER_ERROR, detail)
    if isinstance(found, Score) and penalty and found.as_penalty is not None:
        found = Score(found.as_penalty, found.fields)
    score = found if isinstance(found, Score) else Score(found) if isinstance(found, bool | int | float) else None
    if score is None or not _is_number(score.value, allow_bool=True) or not 0 <= score.value <= 1:
        detail = f"part {name!r} of the rubric returned {found!r:.200}; expected a number from 0 to 1 or a boolean"
        raise Failure(FailureKind.SERVER_ERROR, detail)
    return Score(float(score.value), score.fields)


def _fields_of(scores: Mapping[str, Score]) -> Json:
    fields: Json = {}
    for name, score in scores.items():
        if taken := score.fields.keys() & (_OWN | fields.keys()):
            found = ", ".join(sorted(taken))
            source = f"part {name!r} of the rubric" if name else "the call of the rubric's verdict"
            detail = f"{source} reports {found}, which is already in use; rename the field"
            raise Failure(FailureKind.SERVER_ERROR, detail)
        fields |= score.fields
    return fields


def _is_number(value: Any, *, allow_bool: bool = False) -> bool:
    if isinstance(value, bool):
        return allow_bool
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) <= MAX_REWARD
