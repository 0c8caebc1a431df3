"""Parses the grade from the last line of the judge's answer.

The graded answer is untrusted: it can give the judge instructions and can contain text that looks like a grade.
Therefore only the last line counts, it must match the pattern completely, and a pattern with {code} cannot occur in
the graded answer because the code depends on that answer.
"""

from __future__ import annotations

import math
import re

import orjson

from rollyard.resources_servers.judging.settings import JudgeSettings
from rollyard.services.types import Json


class UnreadableGrade(ValueError):
    """The judge's answer contains no valid grade; the message states what was found instead."""


def judge_text(response: Json) -> str:
    """Return the judge's last message without its reasoning. Raises UnreadableGrade for an incomplete answer."""
    if response.get("status") not in (None, "completed"):
        raise UnreadableGrade(f"the answer is {response.get('status')} ({response.get('incomplete_details')})")
    output = response.get("output")
    for item in reversed(output if isinstance(output, list) else []):
        if isinstance(item, dict) and item.get("type") == "message" and item.get("role") in (None, "assistant"):
            content = item.get("content")
            parts = content if isinstance(content, list) else [{"type": "output_text", "text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "output_text"]
            return _without_thinking("".join(text for text in texts if isinstance(text, str)))
    raise UnreadableGrade("the answer has no message")


def read_score(text: str, code: str, settings: JudgeSettings) -> float:
    """Return the score from 0 to 1 in the last line of the judge's text. Raises UnreadableGrade."""
    line = text.strip().rpartition("\n")[2].strip()
    if settings.json_field is not None:
        grade = _json_grade(line, text, settings.json_field)
    elif found := re.fullmatch(settings.pattern.replace("{code}", re.escape(code)), line):
        grade = found[1]
    else:
        raise UnreadableGrade(f"the last line is {line[:200]!r}, which does not match {settings.pattern!r}")
    return _scaled(grade, settings.scale) if settings.scale else _graded(grade, settings.grades)


def _without_thinking(text: str) -> str:
    """Return the text after the last thinking block, which some engines leave in the message."""
    if "</think>" in text:
        return text.rpartition("</think>")[2]
    return text.partition("<think>")[0]


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
    normalized = str(grade).strip().strip("*`\"'.").strip().upper()
    for label, score in grades.items():
        if label.strip().upper() == normalized:
            return score
    raise UnreadableGrade(f"the grade is {str(grade)[:100]!r}; expected {' or '.join(grades)}")


def _scaled(grade: object, scale: tuple[float, float]) -> float:
    worst, best = scale
    try:
        number = math.nan if isinstance(grade, bool) else float(str(grade).strip().strip("*`"))
    except ValueError:
        number = math.nan
    if not worst <= number <= best:
        raise UnreadableGrade(f"the grade is {str(grade)[:100]!r}; expected a number from {worst:g} to {best:g}")
    return (number - worst) / (best - worst)
