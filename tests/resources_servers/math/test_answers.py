"""MATH's answers: the gold ones, model answers, and wrong ones made from gold ones."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from resources_servers.answers.equality import quick
from resources_servers.answers.judge import Judge
from resources_servers.math.forms import READINGS, gold_answer
from services.errors import Failure
from services.types import Json
from tests.resources_servers.answers.asking import DATA, judged, rows_of, said
from tests.resources_servers.math.mutants import mutants

MATH500 = DATA / "math" / "math500.jsonl"
LOST_BASES = 6
"""Answers like 52 for 52_8, right to math-verify alone."""
BARE_PIS = 10
"""Answers like 8pi for 8\\pi, wrong to math-verify alone."""


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
async def test_every_gold_answer_is_right_in_the_form_that_is_asked_for(form: str, wording: str) -> None:
    found = await judged(Judge(None), READINGS[form], [(gold, wording.replace("%s", gold)) for gold in golds()])
    assert (sum(one.strict for one in found), sum(one.lenient for one in found)) == (500, 500)


@pytest.mark.parametrize(
    "wording", ["%s", "The answer is $%s$.", r"**Answer:** \(%s\)", "As one sees, the result is $%s$."]
)
async def test_every_gold_answer_is_right_in_any_form_for_the_lenient_score(wording: str) -> None:
    found = await judged(Judge(None), READINGS["chat"], [(gold, wording.replace("%s", gold)) for gold in golds()])
    assert sum(one.lenient for one in found) == 500


async def test_every_gold_solution_is_right_whole(judge: Judge) -> None:
    pairs = [(row["answer"], row["solution"]) for row in rows_of(MATH500)]
    found = await judged(judge, READINGS["chat"], pairs)
    assert sum(one.strict and one.lenient for one in found) == 500


async def test_every_solution_of_the_5000_agrees_with_the_answer_read_from_it() -> None:
    rows = rows_of(DATA / "math" / "math_test5000.jsonl.gz")
    found = await judged(Judge(None), READINGS["chat"], [(str(gold_answer(row)), row["solution"]) for row in rows])
    assert sum(one.strict for one in found) == 5000


async def test_a_boxed_answer_is_wrong_to_the_hendrycks_form_as_it_is_to_its_harness() -> None:
    found = await judged(Judge(None), READINGS["lm_eval_hendrycks"], [(gold, rf"\boxed{{{gold}}}") for gold in golds()])
    assert (sum(one.strict for one in found), sum(one.lenient for one in found)) == (0, 500)


@pytest.mark.parametrize(("model", "right"), [("gpt", 471 + BARE_PIS), ("qwen3", 298 - LOST_BASES)])
async def test_model_answers_score_as_with_math_verify_but_for_lost_bases_and_bare_pis(
    judge: Judge, model: str, right: int
) -> None:
    rows: list[Json] = orjson.loads((DATA / "math" / f"math500_{model}_answers.json").read_bytes())
    found = await judged(judge, READINGS["chat"], [(row["answer"], row["prediction"]) for row in rows])
    assert sum(one.strict for one in found) == right


async def test_wrong_answers_made_from_gold_ones_are_refused(judge: Judge) -> None:
    assert await accepted(judge, [(gold, answer) for gold in golds()[::12] for _, answer in mutants(gold)]) == []


async def accepted(judge: Judge, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    found = await asyncio.gather(
        *(judge.judge(gold, said(rf"\boxed{{{answer}}}"), READINGS["chat"]) for gold, answer in pairs)
    )
    return [pair for pair, one in zip(pairs, found, strict=True) if one.strict or one.lenient]


async def test_500_at_once_are_scored_as_one_after_another(judge: Judge) -> None:
    mutated = [(gold, answer) for gold in golds()[::3] for _, answer in mutants(gold)]
    hard = [pair for pair in mutated if quick(*pair) is None][::8]
    endless = [("42", "9^{9^{9^9}}")]
    easy = [pair for pair in mutated if quick(*pair) is not None]
    pairs = [*hard, *endless, *easy, *easy, *easy][:500]
    assert (len(pairs), len(hard) > 20) == (500, True)

    async def score(gold: str, answer: str) -> object:
        try:
            one = await judge.judge(gold, said(rf"\boxed{{{answer}}}"), READINGS["chat"])
        except Failure as failure:
            return failure.kind
        return one

    at_once = await asyncio.gather(*(score(*pair) for pair in pairs))
    in_turn = [await score(*pair) for pair in pairs]
    assert at_once == in_turn
    assert sum(one == "timeout" for one in at_once) == len(endless)
