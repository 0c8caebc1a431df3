"""The wrong answers of `mutants` for all of MATH-500, and for the other formulas of the 5,000: minutes, so run by name.

python -m pytest tests/resources_servers/math/whole_wrong_answers.py
"""

from __future__ import annotations

import re

from resources_servers.answers.judge import Judge
from resources_servers.math.forms import gold_answer
from tests.resources_servers.answers.asking import DATA, rows_of
from tests.resources_servers.math.mutants import mutants
from tests.resources_servers.math.test_answers import accepted, golds


async def test_no_wrong_answer_made_from_math_500_is_right(judge: Judge) -> None:
    assert await accepted(judge, [(gold, answer) for gold in golds() for _, answer in mutants(gold)]) == []


async def test_no_wrong_answer_made_from_the_formulas_of_the_5000_is_right(judge: Judge) -> None:
    found = [str(gold_answer(row)) for row in rows_of(DATA / "math" / "math_test5000.jsonl.gz")]
    formulas = [gold for gold in dict.fromkeys(found) if not re.fullmatch(r"-?\d+", gold)]
    assert await accepted(judge, [(gold, answer) for gold in formulas for _, answer in mutants(gold)]) == []
