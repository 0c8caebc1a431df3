"""From a model's text to a verdict: what counts as said, which answer is in it, whether that is the gold one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resources_servers.answers.equality import Comparison, quick
from resources_servers.answers.extraction import Finder, Found, cut, first_of, said
from resources_servers.answers.workers import Workers
from resources_servers.environment import Verification

OPEN_ENDED = frozenset({"last_number", "last_formula", "whole_text"})
"""Methods whose answer cannot be told from a step on the way when the text breaks off."""
CLOSED = frozenset({"boxed", "answer_tag", "final_answer"})
"""Methods that end with a sign of their own: what is there is whole, however the text goes on."""


@dataclass(frozen=True)
class Reading:
    """How answers are looked for in one form of prompt."""

    stops: tuple[str, ...]
    """The text ends at the first of them, whether the engine honoured them or not."""
    strict: Finder
    """The form that the prompt asks for."""
    lenient: tuple[Finder, ...]
    """In turn; the first that finds anything decides."""
    matches: Callable[[str, str], bool] | None = None
    """The harness's own comparison (gold, answer) for the strict score; None: by meaning, exactly."""
    any_words: bool = False
    """Words behind a number do not matter: `18 eggs`."""


@dataclass(frozen=True)
class Judgement:
    """What was found in a text and what it is worth."""

    answer: str | None
    method: str
    reason: str
    strict: bool
    lenient: bool
    asked_form: bool
    """There is an answer in the form that the prompt asks for."""


class Judge:
    """Compares texts with gold answers."""

    def __init__(self, workers: Workers | None) -> None:
        self._workers = workers
        """None: what needs algebra is not equal."""

    async def judge(self, gold: str, response: Verification, reading: Reading) -> Judgement:
        """The judgement on a response. Raises Failure when the answer could not be verified."""
        text = cut(said(response.text), reading.stops)
        broken = _broken_off(response)
        asked = _usable(reading.strict(text), text, broken)
        found = first_of(reading.lenient, text)
        usable = _usable(found, text, broken)
        if found is None or usable is None:
            return Judgement(None, "none", _why_nothing(response, text, found), False, False, False)
        compared = await self._compared(gold, usable.text, reading.any_words)
        if asked is None:
            strict = False
        elif reading.matches is not None:
            strict = reading.matches(gold, asked.text)
        else:
            same = asked.text == usable.text
            exactly = compared if same else await self._compared(gold, asked.text, reading.any_words)
            strict = exactly.equal and exactly.exact
        return Judgement(usable.text, usable.method, compared.reason, strict, compared.equal, asked is not None)

    async def _compared(self, gold: str, answer: str, any_words: bool) -> Comparison:
        decided = quick(gold, answer, any_words=any_words)
        if decided is not None:
            return decided
        if self._workers is None:
            return Comparison(equal=False, reason="not a number (setting equality: numbers)")
        return await self._workers.compare(gold, answer)


def _broken_off(response: Verification) -> bool:
    """True when the model was cut off by a limit."""
    return response.response.get("status") == "incomplete"


def _usable(found: Found | None, text: str, broken: bool) -> Found | None:
    if found is None or not found.whole:
        return None
    if broken and found.method not in CLOSED and (found.method in OPEN_ENDED or not text[found.end :].strip()):
        return None
    return found


def _why_nothing(response: Verification, text: str, found: Found | None) -> str:
    if found is not None:
        return "the text breaks off before an answer is whole"
    if not response.text.strip():
        return "the model wrote nothing"
    return "no answer after the thinking" if not text.strip() else "no answer found"


def narrowed(finder: Finder, narrow: Callable[[str], str]) -> Finder:
    """A finder whose answer is made shorter by `narrow`."""

    def find(text: str) -> Found | None:
        found = finder(text)
        return Found(narrow(found.text), found.method, found.end, found.whole) if found else None

    return find
