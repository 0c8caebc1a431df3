"""Every formula of MATH's 5,000 test problems, written otherwise and made wrong, and models' answers to 500 of them.

It takes minutes, so it is run by name:

python -m pytest tests/unit/resources_servers/math/math_dataset.py
"""

from __future__ import annotations

import asyncio
import re

import orjson
import pytest

from rollyard.resources_servers.answers.equality import compare_without_algebra
from rollyard.resources_servers.answers.grader import AnswerGrader, Grade
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.math.prompt_formats import ANSWER_FORMS, gold_answer
from rollyard.services.types import Json
from tests.unit.resources_servers.answers.grading import DATA, judged, rows_of, said
from tests.unit.resources_servers.answers.test_final_form import said_back
from tests.unit.resources_servers.math.mutants import mutants
from tests.unit.resources_servers.math.spellings import reprinted, spellings
from tests.unit.resources_servers.math.test_answers import accepted, golds

LOST_BASES = 6
"""Answers like 52 for 52_8, right to math-verify alone."""
COINCIDENCES = 13
"""Formulas such as y = 5 in problems whose answer is 5: right as answers, whatever they are in the problem."""
BARE_PIS = 10
"""Answers like 8pi for 8\\pi, wrong to math-verify alone."""


def formulas() -> list[str]:
    found = [str(gold_answer(row)) for row in rows_of(DATA / "math" / "math_test5000.jsonl.gz")]
    return [gold for gold in dict.fromkeys(found) if not re.fullmatch(r"-?\d+", gold)]


async def test_no_formula_of_a_problem_of_the_5000_is_its_answer_but_for_spellings() -> None:
    rows = rows_of(DATA / "math" / "math_test5000.jsonl.gz")
    pool = WorkerPool(0, 1.0)
    found = await said_back(pool, [{"problem": row["problem"], "answer": str(gold_answer(row))} for row in rows])
    await pool.close()
    assert len(found) <= COINCIDENCES


async def test_no_wrong_answer_made_from_math_500_is_right(judge: AnswerGrader) -> None:
    assert await accepted(judge, [(gold, answer) for gold in golds() for _, answer in mutants(gold)]) == []


async def test_no_wrong_answer_made_from_the_formulas_of_the_5000_is_right(judge: AnswerGrader) -> None:
    assert await accepted(judge, [(gold, answer) for gold in formulas() for _, answer in mutants(gold)]) == []


async def test_every_formula_of_the_5000_is_right_in_other_spellings(judge: AnswerGrader) -> None:
    pairs = [(gold, answer) for gold in formulas() for _, answer in spellings(gold)]
    right = await accepted(judge, pairs)
    assert sorted(set(pairs) - set(right)) == []


async def test_every_formula_of_the_5000_is_right_as_an_algebra_system_prints_it(judge: AnswerGrader) -> None:
    pairs = [(gold, answer) for gold in formulas() if (answer := reprinted(gold)) is not None]
    right = await accepted(judge, pairs)
    assert len(pairs) > 1000
    assert sorted(set(pairs) - set(right)) == []


@pytest.mark.parametrize(("model", "right"), [("gpt", 471 + BARE_PIS), ("qwen3", 298 - LOST_BASES)])
async def test_model_answers_score_as_with_math_verify_but_for_lost_bases_and_bare_pis(
    judge: AnswerGrader, model: str, right: int
) -> None:
    rows: list[Json] = orjson.loads((DATA / "math" / f"math500_{model}_answers.json").read_bytes())
    found = await judged(judge, ANSWER_FORMS["chat"], [(row["answer"], row["prediction"]) for row in rows])
    assert sum(one.strict for one in found) == right


async def test_500_concurrent_verdicts_equal_sequential_ones(judge: AnswerGrader) -> None:
    mutated = [(gold, answer) for gold in golds()[::3] for _, answer in mutants(gold)]
    hard = [pair for pair in mutated if compare_without_algebra(*pair) is None][::8]
    endless = [("3!", "99999999!")]
    easy = [pair for pair in mutated if compare_without_algebra(*pair) is not None]
    pairs = [*hard, *endless, *easy, *easy, *easy][:500]
    assert (len(pairs), len(hard) > 20) == (500, True)

    async def score(gold: str, answer: str) -> Grade:
        return await judge.judge(gold, said(rf"\boxed{{{answer}}}"), ANSWER_FORMS["chat"])

    at_once = await asyncio.gather(*(score(*pair) for pair in pairs))
    in_turn = [await score(*pair) for pair in pairs]
    assert at_once == in_turn
    assert sum("it takes" in one.reason for one in at_once) == len(endless)
