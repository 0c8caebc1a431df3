"""Parses the grade from the last line of the judge's answer.

The graded answer is untrusted: it can give the judge instructions and can contain text that looks like a grade.
Therefore only the last line counts, and it must match the pattern completely. If the pattern contains {code}, the
graded answer cannot contain a matching line, because the code depends on that answer.

Judges often write the line in bold, in a code block, or with different capitalization. Such a line is parsed without
the Markdown. It may also be a quotation from the graded answer. Therefore, unless the pattern has {code}, it is
rejected if the graded answer contains it.
"""

from __future__ import annotations

import math

import orjson
import regex

from rollyard.records.types import Json
from rollyard.resources_servers.judging.grade_text import is_quoted, plain, unfenced
from rollyard.resources_servers.judging.settings import JudgeSettings
from rollyard.services.responses.response_validity import is_answer, message_text

MATCH_S = 1.0
"""Time limit for matching one line against the pattern. Patterns such as `(x|xx)+y` can take exponential time."""


class UnreadableGrade(ValueError):
    """The judge's answer contains no valid grade; the message states what was found instead."""


def judge_text(response: Json) -> str:
    """Return the judge's last message without its reasoning. Raises UnreadableGrade for an incomplete answer."""
    if response.get("status") not in (None, "completed"):
        raise UnreadableGrade(f"the answer is {response.get('status')} ({response.get('incomplete_details')})")
    output = response.get("output")
    for item in reversed(output if isinstance(output, list) else []):
        if isinstance(item, dict) and is_answer(item):
            return _without_thinking(message_text(item))
    raise UnreadableGrade("the answer contains no message")


def read_score(text: str, code: str, settings: JudgeSettings, response: str = "") -> float:
    """Parse the last line of the judge's text and return the score, from 0 to 1. `response` is the graded answer.

    Raises UnreadableGrade if the line does not contain a valid grade.
    """
    try:
        return _score(_last_line(text), text, code, settings)
    except UnreadableGrade as error:
        block = unfenced(text)
        line = _last_line(block)
        shown = block if settings.json_field is not None else plain(line)
        try:
            score = _score(shown, block, code, settings, ignore_case=True)
        except UnreadableGrade:
            raise error from None
        if (settings.json_field is not None or "{code}" not in settings.pattern) and is_quoted(shown, response):
            raise UnreadableGrade(f"the last line, {line[:200]!r}, may be a quotation from the graded answer") from None
        return score


def _score(line: str, text: str, code: str, settings: JudgeSettings, *, ignore_case: bool = False) -> float:
    if settings.json_field is not None:
        grade = _json_grade(line, text, settings.json_field)
    else:
        grade = _pattern_grade(line, code, settings.pattern, regex.IGNORECASE if ignore_case else 0)
    return _scaled(grade, settings.scale) if settings.scale else _graded(grade, settings.grades)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip()


def _without_thinking(text: str) -> str:
    """Return the text after the last thinking block, which some engines leave in the message."""
    if "</think>" in text:
        return text.rpartition("</think>")[2]
    return text.partition("<think>")[0]


def _pattern_grade(line: str, code: str, pattern: str, flags: int) -> str:
    expression = regex.compile(pattern.replace("{code}", regex.escape(code)), flags)
    try:
        found = expression.fullmatch(line, timeout=MATCH_S, concurrent=True)
    except TimeoutError as error:
        raise UnreadableGrade(
            f"matching the last line, {line[:200]!r}, with {pattern!r} took more than {MATCH_S:g} s"
        ) from error
    if found is None:
        raise UnreadableGrade(f"the last line is {line[:200]!r}, which does not match {pattern!r}")
    return str(found[1])


def _json_grade(line: str, text: str, key: str) -> object:
    for candidate in (line, text):
        try:
            value = orjson.loads(candidate)
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict) and key in value:
            grade: object = value[key]
            return grade
    raise UnreadableGrade(f"the last line is {line[:200]!r}; expected a JSON object with {key!r}")


def _graded(grade: object, grades: dict[str, float]) -> float:
    for text in (str(grade).strip(), plain(str(grade))):
        for label, score in grades.items():
            if label.strip().upper() == text.upper():
                return score
    raise UnreadableGrade(f"the grade is {str(grade)[:100]!r}; expected {' or '.join(grades)}")


def _scaled(grade: object, scale: tuple[float, float]) -> float:
    worst, best = scale
    try:
        number = math.nan if isinstance(grade, bool) else float(plain(str(grade)))
    except ValueError:
        number = math.nan
    if not worst <= number <= best:
        raise UnreadableGrade(f"the grade is {str(grade)[:100]!r}; expected a number from {worst:g} to {best:g}")
    return (number - worst) / (best - worst)
