"""Grades a model's text: selects the relevant part, extracts the answer, and compares it with the gold answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Literal, ParamSpec, TypeVar

from pydantic import Field

from rollyard.records.optional import require
from rollyard.records.rewards import VerdictField
from rollyard.resources_servers.answers import extraction
from rollyard.resources_servers.answers.equality import MAX_CHARACTERS, Comparison, compare_without_algebra
from rollyard.resources_servers.answers.finders import with_alternatives
from rollyard.resources_servers.answers.quantity import quantity
from rollyard.resources_servers.answers.worker_pool import Budget, WorkerPool
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification

P = ParamSpec("P")
R = TypeVar("R")
LONG = 20_000
"""Text of at least this many characters is processed in a thread, so it does not delay other episodes."""
MAX_VALUES = 12
"""Maximum number of values in one answer. An answer with more values is wrong."""
_LISTING = re.compile(r",|;|\\pm|\\\\|\\{|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])")
_INEQUALITY = re.compile(r"[<>≤≥]|\\[lg]eq?(?![a-z])")
OPEN_ENDED = frozenset({"last_number", "last_formula", "whole_text"})
"""If the text is truncated, an answer found by one of these methods may be an intermediate step."""
CLOSED = frozenset({"boxed", "answer_tag", "final_answer"})
"""Methods with an explicit end marker: the answer is complete even if the text after it is truncated."""


@dataclass(frozen=True)
class AnswerForm:
    stops: tuple[str, ...]
    """Stop strings. The text is cut at the first one, in case the engine ignored them."""
    strict: extraction.Finder
    """Finds an answer only in the requested format."""
    lenient: tuple[extraction.Finder, ...]
    """Finders for any format, tried in order. The first answer that one of them finds counts."""
    matches: Callable[[str, str], bool] | None = None
    """lm-eval's own comparison of the gold answer (first argument) with an answer, for the strict score. If None, the
    strict score requires an exact mathematical match."""


@dataclass(frozen=True)
class Grade:
    answer: str | None
    method: str
    reason: str
    strict: bool
    lenient: bool
    in_requested_format: bool
    """Whether the text contains an answer in the requested format."""


class AnswerGrader:
    def __init__(self, workers: WorkerPool | None) -> None:
        self._workers = workers
        """If None, an answer that cannot be compared without algebra is graded as wrong."""

    async def grade(self, gold: str, response: Verification, form: AnswerForm, problem: str = "") -> Grade:
        """Grade a response to `problem`. Raises Failure if the answer could not be verified."""
        strict_found, found = await _in_thread_if_long(len(response.text), read, response, form)
        if found is None or not found.whole:
            return Grade(None, "none", _why_nothing(response, found), False, False, False)
        budget = self._workers.budget() if self._workers else None
        compared = await self._compared(gold, found, problem, budget)
        if strict_found is None:
            strict = False
        elif form.matches is not None:
            strict = await _in_thread_if_long(len(strict_found.text), form.matches, gold, strict_found.text)
        else:
            same = (strict_found.text, strict_found.parts) == (found.text, found.parts)
            exactly = compared if same else await self._compared(gold, strict_found, problem, budget)
            strict = exactly.equal and exactly.exact
        return Grade(found.text, found.method, compared.reason, strict, compared.equal, strict_found is not None)

    async def _compared(
        self, gold: str, found: extraction.FoundAnswer, problem: str, budget: Budget | None
    ) -> Comparison:
        """Several values are right if each equals the gold answer, or if their list does."""
        if _LISTING.search(gold) and quantity(gold) is None and (listed := _listed(found)) is not None:
            as_list = await self._equal(gold, listed, problem, budget)
            if as_list.equal:
                return as_list
        values = found.parts or (found.text,)
        several = Comparison(equal=False, reason=f"{len(values)} values are given: {found.text[:80]}")
        if len(values) > MAX_VALUES:
            return several
        exact = True
        for value in values:
            compared = await self._equal(gold, value, problem, budget)
            if not compared.equal:
                return compared if len(values) == 1 else several
            exact = exact and compared.exact
        return compared.model_copy(update={"exact": exact})

    async def _equal(self, gold: str, answer: str, problem: str, budget: Budget | None) -> Comparison:
        if len(answer) > MAX_CHARACTERS:
            reason = f"the answer has {len(answer)} characters; the limit is {MAX_CHARACTERS}"
            return Comparison(equal=False, reason=reason)
        decided = compare_without_algebra(gold, answer, problem=problem)
        if decided is not None:
            return decided
        if self._workers is None:
            return Comparison(equal=False, reason="not a number (setting equality: numbers)")
        return await self._workers.compare(gold, answer, problem, budget)


async def _in_thread_if_long(length: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `function`, which processes `length` characters, without blocking the event loop for long."""
    if length < LONG:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def read(
    response: Verification, form: AnswerForm
) -> tuple[extraction.FoundAnswer | None, extraction.FoundAnswer | None]:
    text = extraction.cut(
        extraction.without_reasoning(extraction.first_turn(response.text, partial(_is_answered, form))), form.stops
    )
    kept, truncated = extraction.after_last_retraction(text), response.response.get("status") == "incomplete"
    # lm-eval's comparisons do not handle retracted answers.
    searched = text if form.matches else kept
    strict, found = _usable(form.strict(searched), searched, truncated), extraction.first_of(form.lenient, kept)
    if strict is not None and form.matches is None:
        strict = with_alternatives(searched, strict)
    if found is None:
        return strict, None
    usable = _usable(found, kept, truncated)
    return strict, with_alternatives(kept, usable) if usable else found._replace(whole=False)


def _is_answered(form: AnswerForm, text: str) -> bool:
    found = form.strict(text) if form.matches is None else None
    found = found or extraction.first_of(form.lenient, extraction.without_reasoning(text))
    return found is not None and found.whole and found.method not in OPEN_ENDED


def _listed(found: extraction.FoundAnswer) -> str | None:
    """Return the values as one list: all values in the text if none of them is a list, otherwise the adjacent ones."""
    single = not any(_LISTING.search(value) for value in found.every)
    values = found.every if single and len(found.every) > len(found.parts) else found.parts
    if not 1 < len(values) <= MAX_VALUES:
        return None
    return (r" \text{ or } " if all(map(_INEQUALITY.search, values)) else ", ").join(values)


def _usable(found: extraction.FoundAnswer | None, text: str, truncated: bool) -> extraction.FoundAnswer | None:
    if found is None or not found.whole:
        return None
    if truncated and found.method not in CLOSED and (found.method in OPEN_ENDED or not text[found.end :].strip()):
        return None
    return found


def _why_nothing(response: Verification, found: extraction.FoundAnswer | None) -> str:
    if found is not None:
        return "the text is truncated before an answer is complete"
    if not response.text.strip():
        return "the model's text is empty"
    return (
        "no answer after the reasoning"
        if not extraction.without_reasoning(response.text).strip()
        else "no answer found"
    )


def narrowed(finder: extraction.Finder, narrow: Callable[[str], Sequence[str]]) -> extraction.Finder:

    def find(text: str) -> extraction.FoundAnswer | None:
        found = finder(text)
        if found is None:
            return None
        return extraction.together(found, [value for part in found.parts or (found.text,) for value in narrow(part)])

    return find


class AnswerSettings(EnvironmentSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = EnvironmentSettings.NOT_IDENTITY | {"verify_workers"}

    score: Literal["lenient", "strict"] = "lenient"
    """Which score becomes the reward. lenient accepts an answer in any format, strict only one in the requested format.
    """
    format_weight: float = Field(default=0.0, ge=0.0, le=1.0)
    """Reward for a wrong answer that has the requested format."""
    equality: Literal["math_verify", "numbers"] = "math_verify"
    """How answers are compared. `numbers` does not require the `math` extra, but supports only plain numbers,
    fractions, percentages and words."""
    verify_workers: int = Field(default=0, ge=0)
    """Maximum number of worker processes that compare answers; they start on demand. 0 means one per CPU."""
    verify_cpu_s: float = Field(default=1.0, gt=0)
    """CPU seconds for all comparisons of one answer. An answer that takes longer is wrong. The rollout fails only if
    the gold answer alone takes more than half of this time."""


A = TypeVar("A", bound=AnswerSettings)


class AnswerEnvironment(Environment[A], Generic[A]):
    """Base class of environments whose tasks have a gold answer. The type argument is the settings class."""

    shared: ClassVar[AnswerGrader]
    verdict_fields: ClassVar[tuple[VerdictField, ...]] = (
        VerdictField(path="expected_answer", role="expected"),
        VerdictField(path="extracted_answer", role="extracted"),
        VerdictField(path="reason", role="reason"),
        VerdictField(path="extraction_method", role="reason", label="found by"),
    )

    @classmethod
    @asynccontextmanager
    async def lifespan(cls, settings: AnswerSettings) -> AsyncIterator[AnswerGrader]:
        """Create the server's grader. Raises OperatorError if the `math` extra is not installed."""
        if settings.equality != "math_verify":
            yield AnswerGrader(None)
            return
        require("math_verify", "math", f"{cls.__name__} (equality: math_verify)")
        workers = WorkerPool(settings.verify_workers, settings.verify_cpu_s)
        try:
            yield AnswerGrader(workers)
        finally:
            await workers.close()

    def verdict(self, grade: Grade, gold: str) -> Verdict:
        right = grade.lenient if self.settings.score == "lenient" else grade.strict
        return Verdict(
            reward=1.0 if right else self.settings.format_weight if grade.in_requested_format else 0.0,
            success=right,
            strict_score=float(grade.strict),
            lenient_score=float(grade.lenient),
            extracted_answer=grade.answer,
            extraction_method=grade.method,
            expected_answer=gold,
            reason=grade.reason,
        )
