"""MATH's 5,000 test problems: their solutions, and their gold answers in other notations and with mistakes.

Model answers to 500 of them. Takes a minute.
"""

from __future__ import annotations

import re
from zlib import crc32

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.resources_servers.answers.equality import compare_without_algebra
from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.math.app import ANSWER_FORMS, gold_answer
from tests.external.math.spellings import notations, reprinted
from tests.unit.resources_servers.answers.grading import DATA, grade_all, rows_of
from tests.unit.resources_servers.answers.test_equality import accepted_formulas
from tests.unit.resources_servers.math.mutants import mutants
from tests.unit.resources_servers.math.test_answers import accepted, boxed_grades, golds

LOST_BASES = 6
"""Answers such as 52 for 52_8, which only math-verify accepts."""
BARE_PIS = 10
"""Answers such as 8pi for 8\\pi, which math-verify rejects."""
ORDINALS = 1
"""`12^{\\mathrm{th}} grade` for 12, which math-verify rejects."""
COINCIDENCES = {("(2,5)", "M(2,5)")}
"""(gold answer, formula of its problem that is right as an answer)."""
ROWS = DATA / "math" / "math_test5000.jsonl.gz"
SHARDS = [pytest.param(0, marks=pytest.mark.smoke), *range(1, 20)]
"""The first is the smoke test."""


def answers() -> list[str]:
    """The distinct gold answers of MATH-500, and all others that are not integers."""
    others = [str(gold_answer(row)) for row in rows_of(ROWS)]
    return [*dict.fromkeys([*golds(), *(gold for gold in others if not re.fullmatch(r"-?\d+", gold))])]


def wrong_answers(gold: str) -> list[str]:
    """All wrong answers derived from this one that are rejected without algebra, and one of the others."""
    wrong = [answer for _, answer in mutants(gold)]
    costly = [answer for answer in wrong if compare_without_algebra(gold, answer) is None]
    chosen = costly[crc32(gold.encode()) % len(costly)] if costly else None
    return [answer for answer in wrong if answer not in costly or answer == chosen]


@pytest.mark.parametrize("shard", SHARDS)
async def test_every_answer_is_right_in_other_notations_and_as_sympy_prints_it_and_wrong_with_a_mistake(
    shard: int, grader: AnswerGrader
) -> None:
    right, wrong = set[tuple[str, str]](), set[tuple[str, str]]()
    printed = 0
    for gold in answers()[shard :: len(SHARDS)]:
        right |= {(gold, answer) for _, answer in notations(gold)}
        wrong |= {(gold, answer) for answer in wrong_answers(gold)}
        if (answer := reprinted(gold)) is not None:
            right.add((gold, answer))
            printed += 1
    found = {*await accepted(grader, [*right, *wrong])}
    assert (right - found, wrong & found) == (set(), set())
    assert printed > 1000 / len(SHARDS) / 2


async def test_formulas_of_problems_are_not_accepted_as_their_answers() -> None:
    pool = WorkerPool(0, 1.0)
    rows = [{"problem": row["problem"], "answer": str(gold_answer(row))} for row in rows_of(ROWS)[::5]]
    accepted_as_answers = {*await accepted_formulas(pool, rows)}
    await pool.close()
    assert accepted_as_answers <= COINCIDENCES


async def test_every_solution_agrees_with_its_extracted_answer() -> None:
    pairs = [(str(gold_answer(row)), row["solution"]) for row in rows_of(ROWS)]
    grades = await grade_all(AnswerGrader(None), ANSWER_FORMS["chat"], pairs)
    assert sum(grade.strict for grade in grades) == 5000


@pytest.mark.parametrize(("model", "right"), [("gpt", 471 + BARE_PIS), ("qwen3", 298 - LOST_BASES + ORDINALS)])
async def test_model_answers_score_as_with_math_verify_except_for_known_differences(
    grader: AnswerGrader, model: str, right: int
) -> None:
    rows: list[Json] = orjson.loads((DATA / "math" / f"math500_{model}_answers.json").read_bytes())
    accepted_pairs = await grade_all(grader, ANSWER_FORMS["chat"], [(row["answer"], row["prediction"]) for row in rows])
    assert sum(grade.strict for grade in accepted_pairs) == right


async def test_concurrent_verdicts_equal_sequential_ones(grader: AnswerGrader) -> None:
    mutated = [(gold, answer) for gold in golds()[::6] for _, answer in mutants(gold)]
    hard = [pair for pair in mutated if compare_without_algebra(*pair) is None][::12]
    easy = [pair for pair in mutated if compare_without_algebra(*pair) is not None]
    timing_out = ("3!", "99999999!+y")
    pairs = [*hard, timing_out, *easy, *easy][:200]
    assert (len(pairs), len(hard) > 8) == (200, True)
    concurrent = await boxed_grades(grader, pairs)
    sequential = [grade for pair in pairs for grade in await boxed_grades(grader, [pair])]
    assert concurrent == sequential
    assert [pair for pair, grade in zip(pairs, concurrent, strict=True) if "; the limit is" in grade.reason] == [
        timing_out
    ]
