"""Answers that are equivalent to the gold answer, and answers that are not; the cases are in cases.txt."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from rollyard.resources_servers.answers.equality import compare_without_algebra
from rollyard.resources_servers.answers.latex import plain_spelling
from rollyard.resources_servers.answers.quantity import quantity, unit_of
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.unit.resources_servers.answers.grading import DATA, compare_answers, rows_of

CASES = (Path(__file__).parent / "cases.txt").read_text("utf-8").removeprefix("# ").split("\n# ")
"""Properties, each with lines `gold answer || = equal ;; equal || != different ;; different || ? problem`.

`""` is an empty answer, and `\\u2009` a character that cannot be seen.
"""


def answers(field: str) -> list[str]:
    written = re.sub(r"\\u([0-9a-f]{4})", lambda match: chr(int(match[1], 16)), field)
    return ["" if answer == '""' else answer for answer in written.split(" ;; ")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.partition("\n")[0])
async def test_an_answer_is_equal_only_in_another_notation(patient_workers: WorkerPool, case: str) -> None:
    wrong = []
    for line in case.splitlines()[1:]:
        gold, *fields = line.split(" || ")
        by_kind = dict(field.split(" ", 1) for field in fields)
        for kind in by_kind.keys() - {"?"}:
            for answer in answers(by_kind[kind]):
                found = await compare_answers(patient_workers, gold, answer, by_kind.get("?", ""))
                if found.equal != (kind == "="):
                    wrong.append((gold, answer, by_kind.get("?")))
    assert wrong == []


FORMULA = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$|\\\[(.+?)\\\]", re.DOTALL)


async def accepted_formulas(workers: WorkerPool, rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    """(gold answer, formula) for each formula of a problem that is wrongly accepted as its answer."""
    accepted = []
    for row in rows:
        for match in FORMULA.finditer(row["problem"]):
            formula, gold = match[1] or match[2], row["answer"]
            if (
                plain_spelling(formula).strip("., ") != plain_spelling(gold)
                and (await compare_answers(workers, gold, formula, row["problem"])).equal
            ):
                accepted.append((gold, formula))
    return accepted


async def test_a_formula_of_the_problem_is_not_its_answer(patient_workers: WorkerPool) -> None:
    assert await accepted_formulas(patient_workers, rows_of(DATA / "math" / "math500.jsonl")[::10]) == []


async def test_a_decimal_of_six_digits_equals_the_number_it_rounds_but_not_exactly_in_either_order(
    patient_workers: WorkerPool,
) -> None:
    third, root = (r"\frac{1}{3}", "0.333333"), (r"\sqrt{51}", "7.141428")
    for gold, answer in (third, third[::-1], (r"\frac{2}{3}", "0.66666666"), root, ("2.645751", r"\sqrt{7}")):
        result = await compare_answers(patient_workers, gold, answer)
        assert (result.equal, result.exact) == (True, False), (gold, answer)


def test_simple_answers_need_no_algebra() -> None:
    for gold, answer in (("18", "18.0"), ("18", "19"), (r"\text{yes}", "no"), ("52_8", "52"), ("x+1", "x + 1")):
        assert compare_without_algebra(gold, answer) is not None
    assert compare_without_algebra("x+1", "1+x") is None


NUMBERS = r"""
1018: 1,018 ;; 1{,}018 ;; 1\,018 ;; 1 018
11111111100: 11,\! 111,\! 111,\! 100
100000: 1,00,000 ;; 1e5
18: \$18.00 ;; １８ ;; \text{18 dollars} ;; \approx 18 ;; 18. ;; $18$
-5: -$5 ;; −5
7/2: 3\frac{1}{2} ;; 3 1/2
31/2: 31/2
1/2: ½ ;; \dfrac12 ;; .5
-1/2: \frac{-1}{2}
1800: 1.8 \times 10^{3}
1/3: 0.\overline{3}
1/6: 0.1\overline{6}
3: ٣
1500000: 1.5 million
24: 2 dozen
"""
UNITS = {
    "cm": [r"5\text{ cm}"], "cm^2": [r"15\mbox{ cm}^2"], "in^2": ["864 square inches", r"864 \mbox{ inches}^2"],
    "degree": [r"90^\circ", "90 degrees"],
    "dollar": [r"\$36"], "cent": ["5.4 cents"], None: [r"5\text{ students}", "5"],
}  # fmt: skip


def test_every_notation_of_a_number_has_its_exact_value() -> None:
    for line in NUMBERS.strip().splitlines():
        value, texts = line.split(": ")
        for text in texts.split(" ;; "):
            found = quantity(text)
            assert found is not None and found.value == Fraction(value), text


NO_NUMBERS = (
    ["", "$", "1,2", "1,23", "1 8", "3 or 4", r"3 \text{ or more}", "18x", "18 x", "2^{10}", "x", r"\frac{1}{0}", "5²",
     "1/2/3", "1e99999", "9" * 3000, "10:30", "--5", "1.2.3", "3 5/2", "four", "⅟", "18 eggs"]
)  # fmt: skip


def test_a_text_that_is_not_one_number_yields_none() -> None:
    assert [text for text in NO_NUMBERS if quantity(text)] == []


def test_words_after_a_number_may_be_ignored_and_its_unit_has_one_canonical_name() -> None:
    assert quantity("18 eggs a day", any_words=True) is not None
    assert quantity("18 or more", any_words=True) is None
    for unit, texts in UNITS.items():
        assert {found.unit for text in texts if (found := quantity(text))} == {unit}
    assert unit_of(r"\frac{3}{4}\pi\text{ inches}") == "in"
    assert unit_of(r"\frac{3}{4}\pi") is None
