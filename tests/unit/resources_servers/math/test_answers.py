"""MATH's answers: gold answers, model answers, and wrong answers derived from gold ones."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.math.prompt_formats import ANSWER_FORMS, gold_answer
from tests.unit.resources_servers.answers.grading import DATA, judged, rows_of, said
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
    found = await judged(
        AnswerGrader(None), ANSWER_FORMS[form], [(gold, wording.replace("%s", gold)) for gold in golds()]
    )
    assert (sum(one.strict for one in found), sum(one.lenient for one in found)) == (500, 500)


@pytest.mark.parametrize(
    "wording", ["%s", "The answer is $%s$.", r"**Answer:** \(%s\)", "As one sees, the result is $%s$."]
)
async def test_every_gold_answer_is_right_in_any_form_for_the_lenient_score(wording: str) -> None:
    found = await judged(
        AnswerGrader(None), ANSWER_FORMS["chat"], [(gold, wording.replace("%s", gold)) for gold in golds()]
    )
    assert sum(one.lenient for one in found) == 500


async def test_every_gold_solution_is_right_whole(judge: AnswerGrader) -> None:
    pairs = [(row["answer"], row["solution"]) for row in rows_of(MATH500)]
    found = await judged(judge, ANSWER_FORMS["chat"], pairs)
    assert sum(one.strict and one.lenient for one in found) == 500


async def test_every_solution_of_the_5000_agrees_with_the_answer_read_from_it() -> None:
    rows = rows_of(DATA / "math" / "math_test5000.jsonl.gz")
    found = await judged(
        AnswerGrader(None), ANSWER_FORMS["chat"], [(str(gold_answer(row)), row["solution"]) for row in rows]
    )
    assert sum(one.strict for one in found) == 5000


async def test_a_boxed_answer_is_wrong_to_the_hendrycks_form_as_it_is_to_its_harness() -> None:
    found = await judged(
        AnswerGrader(None), ANSWER_FORMS["lm_eval_hendrycks"], [(gold, rf"\boxed{{{gold}}}") for gold in golds()]
    )
    assert (sum(one.strict for one in found), sum(one.lenient for one in found)) == (0, 500)


async def test_wrong_answers_derived_from_gold_ones_are_rejected(judge: AnswerGrader) -> None:
    assert await accepted(judge, [(gold, answer) for gold in golds()[::12] for _, answer in mutants(gold)]) == []


async def accepted(judge: AnswerGrader, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    found = await asyncio.gather(
        *(judge.judge(gold, said(rf"\boxed{{{answer}}}"), ANSWER_FORMS["chat"]) for gold, answer in pairs)
    )
    return [pair for pair, one in zip(pairs, found, strict=True) if one.strict or one.lenient]
