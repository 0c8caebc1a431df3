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
    ("form", "wording"),
    [
        ("chat", r"Thus it is \boxed{%s}."),
        ("lm_eval_hendrycks", "Thus it is $%s$."),
        ("lm_eval_minerva", "Thus.\nFinal Answer: The final answer is $%s$. I hope it is correct."),
    ],
)
async def test_every_gold_answer_is_right_in_the_requested_form(form: str, wording: str) -> None:
    grades = await grade_all(
        AnswerGrader(None), ANSWER_FORMS[form], [(gold, wording.replace("%s", gold)) for gold in golds()]
    )
    assert (sum(grade.strict for grade in grades), sum(grade.lenient for grade in grades)) == (500, 500)


@pytest.mark.parametrize(
    "wording", ["%s", "The answer is $%s$.", r"**Answer:** \(%s\)", "As you can see, the result is $%s$."]
)
async def test_every_gold_answer_is_right_in_any_form_for_the_lenient_score(wording: str) -> None:
    grades = await grade_all(
        AnswerGrader(None), ANSWER_FORMS["chat"], [(gold, wording.replace("%s", gold)) for gold in golds()]
    )
    assert sum(grade.lenient for grade in grades) == 500


async def test_every_complete_gold_solution_is_right(grader: AnswerGrader) -> None:
    pairs = [(row["answer"], row["solution"]) for row in rows_of(MATH500)]
    grades = await grade_all(grader, ANSWER_FORMS["chat"], pairs)
    assert sum(grade.strict and grade.lenient for grade in grades) == 500


async def test_a_boxed_answer_is_wrong_in_the_hendrycks_form_as_in_lm_eval() -> None:
    grades = await grade_all(
        AnswerGrader(None), ANSWER_FORMS["lm_eval_hendrycks"], [(gold, rf"\boxed{{{gold}}}") for gold in golds()]
    )
    assert (sum(grade.strict for grade in grades), sum(grade.lenient for grade in grades)) == (0, 500)


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
