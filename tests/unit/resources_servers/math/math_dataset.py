"""The formulas of MATH's 5,000 test problems in other notations and with mistakes, and model answers to 500 of them.

These tests take minutes, so they run only by name:

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
from tests.unit.resources_servers.answers.grading import DATA, grade_all, rows_of, verification_of
from tests.unit.resources_servers.answers.test_final_form import accepted_formulas
from tests.unit.resources_servers.math.mutants import mutants
from tests.unit.resources_servers.math.spellings import notations, reprinted
from tests.unit.resources_servers.math.test_answers import accepted, golds

LOST_BASES = 6
"""Answers such as 52 for 52_8, which only math-verify accepts."""
COINCIDENCES = 13
"""Formulas such as y = 5 in problems whose answer is 5: right as answers."""
BARE_PIS = 10
"""Answers such as 8pi for 8\\pi, which math-verify rejects."""


def formulas() -> list[str]:
    answers = [str(gold_answer(row)) for row in rows_of(DATA / "math" / "math_test5000.jsonl.gz")]
    return [gold for gold in dict.fromkeys(answers) if not re.fullmatch(r"-?\d+", gold)]


async def test_few_formulas_of_the_5000_problems_are_accepted_as_their_answers() -> None:
    rows = rows_of(DATA / "math" / "math_test5000.jsonl.gz")
    pool = WorkerPool(0, 1.0)
    accepted_as_answers = await accepted_formulas(
        pool, [{"problem": row["problem"], "answer": str(gold_answer(row))} for row in rows]
    )
    await pool.close()
    assert len(accepted_as_answers) <= COINCIDENCES


async def test_no_wrong_answer_derived_from_math_500_is_accepted(grader: AnswerGrader) -> None:
    assert await accepted(grader, [(gold, answer) for gold in golds() for _, answer in mutants(gold)]) == []


async def test_no_wrong_answer_derived_from_the_5000_problems_is_accepted(grader: AnswerGrader) -> None:
    assert await accepted(grader, [(gold, answer) for gold in formulas() for _, answer in mutants(gold)]) == []


async def test_every_formula_of_the_5000_problems_is_right_in_other_notations(grader: AnswerGrader) -> None:
    pairs = [(gold, answer) for gold in formulas() for _, answer in notations(gold)]
    right = await accepted(grader, pairs)
    assert sorted(set(pairs) - set(right)) == []


async def test_every_formula_of_the_5000_problems_is_right_as_sympy_prints_it(grader: AnswerGrader) -> None:
    pairs = [(gold, answer) for gold in formulas() if (answer := reprinted(gold)) is not None]
    right = await accepted(grader, pairs)
    assert len(pairs) > 1000
    assert sorted(set(pairs) - set(right)) == []


@pytest.mark.parametrize(("model", "right"), [("gpt", 471 + BARE_PIS), ("qwen3", 298 - LOST_BASES)])
async def test_model_answers_score_as_with_math_verify_except_for_known_differences(
    grader: AnswerGrader, model: str, right: int
) -> None:
    rows: list[Json] = orjson.loads((DATA / "math" / f"math500_{model}_answers.json").read_bytes())
    accepted_pairs = await grade_all(grader, ANSWER_FORMS["chat"], [(row["answer"], row["prediction"]) for row in rows])
    assert sum(grade.strict for grade in accepted_pairs) == right


async def test_500_concurrent_verdicts_equal_sequential_ones(grader: AnswerGrader) -> None:
    mutated = [(gold, answer) for gold in golds()[::3] for _, answer in mutants(gold)]
    hard = [pair for pair in mutated if compare_without_algebra(*pair) is None][::8]
    timing_out = [("3!", "99999999!")]
    easy = [pair for pair in mutated if compare_without_algebra(*pair) is not None]
    pairs = [*hard, *timing_out, *easy, *easy, *easy][:500]
    assert (len(pairs), len(hard) > 20) == (500, True)

    async def score(gold: str, answer: str) -> Grade:
        return await grader.grade(gold, verification_of(rf"\boxed{{{answer}}}"), ANSWER_FORMS["chat"])

    concurrent = await asyncio.gather(*(score(*pair) for pair in pairs))
    sequential = [await score(*pair) for pair in pairs]
    assert concurrent == sequential
    assert sum("; the limit is" in grade.reason for grade in concurrent) == len(timing_out)
