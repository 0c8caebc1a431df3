"""Targets that grade: a text of a model gets a verdict, whatever it is, and within a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.resources_servers.answers import programs
from rollyard.resources_servers.answers.equality import MAX_CHARACTERS, compare_without_algebra
from rollyard.resources_servers.answers.grader import AnswerForm, AnswerGrader
from rollyard.resources_servers.environment import Verification
from rollyard.resources_servers.gsm8k import app as gsm8k
from rollyard.resources_servers.humaneval import app as humaneval
from rollyard.resources_servers.ifeval import app as ifeval
from rollyard.resources_servers.judge import JudgeSettings, UnreadableGrade, read_score
from rollyard.resources_servers.math import app as math

_GRADER = AnswerGrader(None)
_FORMS: tuple[AnswerForm, ...] = (*gsm8k.ANSWER_FORMS.values(), *math.ANSWER_FORMS.values())


def _response(text: str) -> Json:
    return {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}


def _graded(coroutine: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner() as runner:
        return runner.run(coroutine)


def formula(data: bytes) -> None:
    """A gold answer, an empty line and a text: each format gives a verdict, and a text without an answer is wrong."""
    gold, _, text = data.decode("utf-8", "replace").partition("\n\n")

    async def grade() -> None:
        response = Verification(orjson.dumps({"response": _response(text)}))
        for form in _FORMS:
            grade = await _GRADER.grade(gold, response, form)
            assert grade.answer is not None or not (grade.lenient or grade.strict or grade.in_requested_format)

    if 0 < len(gold) <= MAX_CHARACTERS:
        _graded(grade())
        compared = compare_without_algebra(gold, gold)
        if gsm8k.gold_number(gold) == gold and compared is not None:
            assert compared.equal, gold


def instructions(data: bytes) -> None:
    """A row of IFEval with a `text`: the row is refused, or each instruction is followed or not."""
    try:
        row = orjson.loads(data)
    except ValueError:
        return
    if not isinstance(row, dict):
        return
    text = row.get("text")
    with suppress(ValueError):
        for kind, instruction in ifeval.instructions(row):
            try:
                found = ifeval.outcome(kind, instruction, text if isinstance(text, str) else "")
            except ValueError as error:
                raise AssertionError(f"{kind} failed: {error!r}") from error
            assert found.loose or not found.strict


_PROMPT = 'import math\n\n\ndef f(x):\n    """Return x."""\n'


def program(data: bytes) -> None:
    """A text holds a program or none; the one that is found is Python, as far as it is meant to be run as such."""
    text = data.decode("utf-8", "replace")
    found = programs.find(text, ("f",))
    if found is not None and "f" in programs.defined(found.code):
        compile(found.code, "found", "exec", dont_inherit=True)
    whole = humaneval.program(_PROMPT, "f", text)
    if whole is not None:
        assert "f" in programs.defined(whole.code)


_JUDGES = tuple(
    JudgeSettings.model_validate({"model_server": {"name": "judge"}, **settings})
    for settings in (
        {},
        {"scale": (0, 10)},
        {"json_field": "grade"},
        {"json_field": "grade", "scale": (1, 5)},
        {"pattern": r"(?:\[\[)?(\w+)(?:\]\])?", "grades": {"A": 1.0, "B": 0.0}},
    )
)


def judgement(data: bytes) -> None:
    """A judge's text and, after an empty line, the answer that it graded: a score from 0 to 1, or no readable grade."""
    text, _, response = data.decode("utf-8", "replace").partition("\n\n\n")
    for settings in _JUDGES:
        with suppress(UnreadableGrade):
            assert 0.0 <= read_score(text, "c0de", settings, response) <= 1.0
