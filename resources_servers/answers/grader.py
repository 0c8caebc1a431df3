"""From a model's text to a verdict: what counts as said, which answer is in it, whether that is the gold one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar

from rollyard.resources_servers.answers.equality import MOST_CHARACTERS, Comparison, compare_without_algebra
from rollyard.resources_servers.answers.quantity import quantity
from rollyard.resources_servers.answers.reading.adjacent_values import together
from rollyard.resources_servers.answers.reading.alternatives import with_alternatives
from rollyard.resources_servers.answers.reading.extraction import Finder, Found, cut, first_of, without_reasoning
from rollyard.resources_servers.answers.reading.retractions import after_last_retraction
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.environment import Verification

P = ParamSpec("P")
R = TypeVar("R")
LONG = 20_000
"""Characters of a text that is read in a thread: other episodes must not wait for it."""
MOST_VALUES = 12
"""In one answer; a text that gives more is wrong unread."""
_LISTING = re.compile(r",|;|\\pm|\\\\|\\{|(?<![a-zA-Z])(?:and|or)(?![a-zA-Z])")
_INEQUALITY = re.compile(r"[<>≤≥]|\\[lg]eq?(?![a-z])")
OPEN_ENDED = frozenset({"last_number", "last_formula", "whole_text"})
"""Methods whose answer cannot be told from a step on the way when the text breaks off."""
CLOSED = frozenset({"boxed", "answer_tag", "final_answer"})
"""Methods that end with a sign of their own: what is there is whole, however the text goes on."""


@dataclass(frozen=True)
class AnswerForm:
    """How answers are looked for in one form of prompt."""

    stops: tuple[str, ...]
    """The text ends at the first of them, whether the engine honoured them or not."""
    strict: Finder
    """The form that the prompt asks for."""
    lenient: tuple[Finder, ...]
    """In turn; the first that finds anything decides."""
    matches: Callable[[str, str], bool] | None = None
    """The harness's own comparison (gold, answer) for the strict score; None: by meaning, exactly."""


@dataclass(frozen=True)
class Grade:
    """What was found in a text and what it is worth."""

    answer: str | None
    method: str
    reason: str
    strict: bool
    lenient: bool
    asked_form: bool
    """There is an answer in the form that the prompt asks for."""


class AnswerGrader:
    """Compares texts with gold answers."""

    def __init__(self, workers: WorkerPool | None) -> None:
        self._workers = workers
        """None: what needs algebra is not equal."""

    async def judge(self, gold: str, response: Verification, reading: AnswerForm, problem: str = "") -> Grade:
        """The judgement on a response to `problem`. Raises Failure when the answer could not be verified."""
        asked, found = await _aside(len(response.text), read, response, reading)
        if found is None or not found.whole:
            return Grade(None, "none", _why_nothing(response, found), False, False, False)
        compared = await self._compared(gold, found, problem)
        if asked is None:
            strict = False
        elif reading.matches is not None:
            strict = await _aside(len(asked.text), reading.matches, gold, asked.text)
        else:
            same = (asked.text, asked.parts) == (found.text, found.parts)
            exactly = compared if same else await self._compared(gold, asked, problem)
            strict = exactly.equal and exactly.exact
        return Grade(found.text, found.method, compared.reason, strict, compared.equal, asked is not None)

    async def _compared(self, gold: str, found: Found, problem: str) -> Comparison:
        """Of several values all must be equal to the gold answer, or their list to the gold one."""
        if _is_list(gold) and (listed := _listed(found)) is not None:
            as_list = await self._equal(gold, listed, problem)
            if as_list.equal:
                return as_list
        compared = [await self._equal(gold, value, problem) for value in found.parts[:MOST_VALUES] or (found.text,)]
        if all(one.equal for one in compared) and len(found.parts) <= MOST_VALUES:
            return compared[-1].model_copy(update={"exact": all(one.exact for one in compared)})
        if len(compared) == 1:
            return compared[0]
        return Comparison(equal=False, reason=f"{len(found.parts)} values are given: {found.text[:80]}")

    async def _equal(self, gold: str, answer: str, problem: str) -> Comparison:
        if len(answer) > MOST_CHARACTERS:
            reason = f"the answer has {len(answer)} characters, over {MOST_CHARACTERS}"
            return Comparison(equal=False, reason=reason)
        decided = compare_without_algebra(gold, answer, problem=problem)
        if decided is not None:
            return decided
        if self._workers is None:
            return Comparison(equal=False, reason="not a number (setting equality: numbers)")
        return await self._workers.compare(gold, answer, problem)


async def _aside(length: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of `function`, which reads `length` characters, without keeping the event loop waiting."""
    if length < LONG:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def read(response: Verification, reading: AnswerForm) -> tuple[Found | None, Found | None]:
    """The answer in the form that was asked for, and the answer in any form. Linear in the length of the text."""
    text = cut(without_reasoning(response.text), reading.stops)
    kept, broken = after_last_retraction(text), _broken_off(response)
    # A harness knows nothing of answers that are taken back.
    where = text if reading.matches else kept
    asked, found = _usable(reading.strict(where), where, broken), first_of(reading.lenient, kept)
    if asked is not None and reading.matches is None:
        asked = with_alternatives(where, asked)
    if found is None:
        return asked, None
    usable = _usable(found, kept, broken)
    return asked, with_alternatives(kept, usable) if usable else replace(found, whole=False)


def _is_list(gold: str) -> bool:
    """True for a gold answer of several values."""
    return bool(_LISTING.search(gold)) and quantity(gold) is None


def _listed(found: Found) -> str | None:
    """The values as one list: those in a row, or all that the text gives where each is a single one."""
    single = not any(_LISTING.search(value) for value in found.every)
    values = found.every if single and len(found.every) > len(found.parts) else found.parts
    if not 1 < len(values) <= MOST_VALUES:
        return None
    return (r" \text{ or } " if all(map(_INEQUALITY.search, values)) else ", ").join(values)


def _broken_off(response: Verification) -> bool:
    """True when the model was cut off by a limit."""
    return response.response.get("status") == "incomplete"


def _usable(found: Found | None, text: str, broken: bool) -> Found | None:
    if found is None or not found.whole:
        return None
    if broken and found.method not in CLOSED and (found.method in OPEN_ENDED or not text[found.end :].strip()):
        return None
    return found


def _why_nothing(response: Verification, found: Found | None) -> str:
    if found is not None:
        return "the text breaks off before an answer is whole"
    if not response.text.strip():
        return "the model wrote nothing"
    return "no answer after the thinking" if not without_reasoning(response.text).strip() else "no answer found"


def narrowed(finder: Finder, narrow: Callable[[str], Sequence[str]]) -> Finder:
    """A finder whose answer is made shorter by `narrow`, which may find several values in it."""

    def find(text: str) -> Found | None:
        found = finder(text)
        if found is None:
            return None
        return together(found, [value for part in found.parts or (found.text,) for value in narrow(part)])

    return find
