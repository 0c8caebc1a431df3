"""Every formula of MATH's 5,000 test problems, written otherwise and made wrong: minutes, so run by name.

python -m pytest tests/resources_servers/math/whole_of_math.py
"""

from __future__ import annotations

import re

from resources_servers.answers.judge import Judge
from resources_servers.math.forms import gold_answer
from tests.resources_servers.answers.asking import DATA, rows_of
from tests.resources_servers.math.mutants import mutants
from tests.resources_servers.math.spellings import reprinted, spellings
from tests.resources_servers.math.test_answers import accepted, golds


def formulas() -> list[str]:
    found = [str(gold_answer(row)) for row in rows_of(DATA / "math" / "math_test5000.jsonl.gz")]
    return [gold for gold in dict.fromkeys(found) if not re.fullmatch(r"-?\d+", gold)]


async def test_no_wrong_answer_made_from_math_500_is_right(judge: Judge) -> None:
    assert await accepted(judge, [(gold, answer) for gold in golds() for _, answer in mutants(gold)]) == []


async def test_no_wrong_answer_made_from_the_formulas_of_the_5000_is_right(judge: Judge) -> None:
    assert await accepted(judge, [(gold, answer) for gold in formulas() for _, answer in mutants(gold)]) == []


async def test_every_formula_of_the_5000_is_right_in_other_spellings(judge: Judge) -> None:
    pairs = [(gold, answer) for gold in formulas() for _, answer in spellings(gold)]
    right = await accepted(judge, pairs)
    assert sorted(set(pairs) - set(right)) == []


async def test_every_formula_of_the_5000_is_right_as_an_algebra_system_prints_it(judge: Judge) -> None:
    pairs = [(gold, answer) for gold in formulas() if (answer := reprinted(gold)) is not None]
    right = await accepted(judge, pairs)
    assert len(pairs) > 1000
    assert sorted(set(pairs) - set(right)) == []
