"""All gold answers of GSM8K's test split in all forms, and 5,276 model answers with the authors' labels."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS, gold_number
from tests.unit.resources_servers.answers.grading import grade_all, rows_of
from tests.unit.resources_servers.gsm8k.test_answers import REQUESTED, TEST, UNREQUESTED, agreements, labelled

FORMS = [(*requested, True) for requested in REQUESTED] + [("chat", wording, False) for wording in UNREQUESTED]


@pytest.mark.parametrize(("form", "wording", "strict"), FORMS)
async def test_every_gold_answer_is_right(form: str, wording: str, strict: bool) -> None:
    golds = [str(gold_number(row["answer"])) for row in rows_of(TEST)]
    grades = await grade_all(AnswerGrader(None), ANSWER_FORMS[form], [(gold, wording % gold) for gold in golds])
    assert sum(grade.lenient and (grade.strict or not strict) for grade in grades) == 1319


async def test_every_complete_gold_solution_is_right() -> None:
    pairs = [(str(gold_number(row["answer"])), row["answer"]) for row in rows_of(TEST)]
    grades = await grade_all(AnswerGrader(None), ANSWER_FORMS["lm_eval"], pairs)
    assert sum(grade.strict and grade.lenient for grade in grades) == 1319


async def test_the_grades_agree_with_the_authors_labels_of_all_model_answers() -> None:
    everything = labelled(1)
    agreed = await agreements(everything)
    assert (sum(agreed), len(agreed), sum(label for *_, label in everything)) == (5276, 5276, 2001)
