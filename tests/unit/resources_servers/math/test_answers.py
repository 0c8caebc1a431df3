"""MATH's answers: gold answers, model answers, and wrong answers derived from gold ones."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.resources_servers.answers.grader import AnswerGrader, Grade
from rollyard.resources_servers.math.app import ANSWER_FORMS
from tests.unit.resources_servers.answers.grading import DATA, grade_all, rows_of, verification_of
from tests.unit.resources_servers.math.mutants import mutants

MATH500 = DATA / "math" / "math500.jsonl"


def golds() -> list[str]:
    return [row["answer"] for row in rows_of(MATH500)]


@pytest.mark.parametrize(
    ("form", "wording", "strict"),
    [
        ("chat", r"Thus it is \boxed{%s}.", 500),
        ("lm_eval_hendrycks", "Thus it is $%s$.", 500),
        ("lm_eval_hendrycks", r"\boxed{%s}", 0),  # as in lm_eval
        ("lm_eval_minerva", "Thus.\nFinal Answer: The final answer is $%s$. I hope it is correct.", 500),
        *(("chat", wording, None) for wording in ("%s", "The answer is $%s$.", r"**Answer:** \(%s\)", "It is $%s$.")),
    ],
)
async def test_every_gold_answer_is_right_in_any_form_and_strictly_only_in_the_requested_one(
    form: str, wording: str, strict: int | None
) -> None:
    pairs = [(gold, wording.replace("%s", gold)) for gold in golds()]
    grades = await grade_all(AnswerGrader(None), ANSWER_FORMS[form], pairs)
    assert sum(grade.lenient for grade in grades) == 500
    assert strict is None or sum(grade.strict for grade in grades) == strict


async def test_every_complete_gold_solution_is_right(grader: AnswerGrader) -> None:
    pairs = [(row["answer"], row["solution"]) for row in rows_of(MATH500)]
    grades = await grade_all(grader, ANSWER_FORMS["chat"], pairs)
    assert sum(grade.strict and grade.lenient for grade in grades) == 500


async def test_wrong_answers_derived_from_gold_ones_are_rejected(grader: AnswerGrader) -> None:
    def pairs(step: int) -> list[tuple[str, str]]:
        return [(gold, answer) for gold in golds()[::step] for _, answer in mutants(gold)]

    assert await accepted(AnswerGrader(None), pairs(3)) == []  # algebra would take seconds
    assert await accepted(grader, pairs(40)) == []


async def boxed_grades(grader: AnswerGrader, pairs: list[tuple[str, str]]) -> list[Grade]:
    """The grades of (gold answer, boxed answer), requested concurrently."""
    return await asyncio.gather(
        *(grader.grade(gold, verification_of(rf"\boxed{{{answer}}}"), ANSWER_FORMS["chat"]) for gold, answer in pairs)
    )


async def accepted(grader: AnswerGrader, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    grades = await boxed_grades(grader, pairs)
    return [pair for pair, grade in zip(pairs, grades, strict=True) if grade.strict or grade.lenient]
