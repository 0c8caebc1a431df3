"""Answers that are equal to the gold answer but not fully evaluated."""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import plain_spelling
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.unit.resources_servers.answers.grading import DATA, compare_answers, rows_of
from tests.unit.resources_servers.answers.test_claims import FIND, different, equal

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
    rows = rows_of(DATA / "math" / "math500.jsonl")[::10]
    assert await accepted_formulas(patient_workers, rows) == []
    cases = [
        (
            r"Compute $\binom{9}{2}$.",
            "36",
            [r"\binom{9}{2}", r"\dbinom92", r"{9 \choose 2}", r"\frac{9!}{7!2!}", "C(9,2)"],
        ),
        (r"What is $10^8-2\cdot 10^5+1$?", "99800001", [r"10^8-2\cdot 10^5+1", r"10^8 - 2\times10^5 + 1"]),
        (r"Write $\frac{4}{8}$ in lowest terms.", r"\frac12", [r"\frac48", "4/8"]),
        (r"Express $0.\overline{3}$ as a fraction.", r"\frac13", [r"0.\overline{3}"]),
        (r"Simplify $\sqrt{12}$.", r"2\sqrt{3}", [r"\sqrt{12}"]),
        ("Solve $|x-3|<5$.", "(-2,8)", ["|x-3|<5", "x-3<5", "-5<x-3<5"]),
    ]
    assert await equal(patient_workers, cases) == []


async def test_functions_and_long_arithmetic_that_the_gold_answer_lacks_are_not_final(
    patient_workers: WorkerPool,
) -> None:
    cases = [
        (FIND, "120", ["5!", r"\sum_{k=1}^{15} k", r"5 \cdot 4 \cdot 3 \cdot 2 \cdot 1", r"\prod_{k=1}^5 k"]),
        (FIND, "3", [r"\lfloor \pi \rfloor", r"\gcd(6,9)", r"\log_2 8", "|-3|", r"\max(1,3)", r"10 \bmod 7"]),
        (
            FIND,
            "3",
            [r"3\sin 90^\circ", r"\lim_{x\to 3} x", r"\int_0^3 1 dx", r"\text{lcm}(1,3)", r"\lceil 2.5 \rceil"],
        ),
        (FIND, "18", ["5(-2)^2+3(-2)+4", "(16-3-4) \\cdot 2"]),
        (FIND, r"\frac12", [r"\sin 30^\circ", r"\cos 60^\circ"]),
    ]
    assert await equal(patient_workers, cases) == []


async def test_an_exact_value_that_can_be_simplified_slightly_is_final(patient_workers: WorkerPool) -> None:
    cases = [
        (FIND, "1024", ["2^{10}"]),
        (FIND, "12", [r"3\cdot 4", "2+10"]),
        (FIND, r"\frac92", [r"\frac{18}{4}", "4.5", r"4\frac12"]),
        (FIND, r"4\sqrt2", [r"2\sqrt{8}"]),
        (FIND, r"\frac{\sqrt3}{2}", [r"\frac{\sqrt{12}}{4}", r"\sqrt{3}/2", r"\sqrt{\frac{3}{4}}"]),
        (r"Compute $\binom{9}{2}$.", "36", [r"\binom{9}{2} = 36", r"\binom{9}{2} = \frac{9 \cdot 8}{2} = 36"]),
        (FIND, r"\log_2 3", [r"\frac{\log 3}{\log 2}"]),
        (FIND, r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", [r"\frac{1}{3}\begin{pmatrix} -1 \\ 2 \end{pmatrix}"]),
    ]
    assert await different(patient_workers, cases) == []


async def test_an_answer_must_have_the_required_form(patient_workers: WorkerPool) -> None:
    wrong = [
        ("Factor $x^2-1$.", "(x-1)(x+1)", ["x^2-1", "-1+x^2"]),
        ("Factor $2x^2-2$.", "2(x-1)(x+1)", ["2(x^2-1)", "2x^2-2"]),
        ("Expand $(x+1)^2$.", "x^2+2x+1", ["(x+1)^2", "(x+1)(x+1)", "x(x+2)+1"]),
        ("Simplify $(3x+2)-(x-1)$.", "2x+3", ["3x+2-x+1", "(3x+2)-(x-1)"]),
    ]
    right = [
        ("Factor $x^2-1$.", "(x-1)(x+1)", ["(x+1)(x-1)", r"(x-1)\cdot(x+1)"]),
        ("Expand $(x+1)^2$.", "x^2+2x+1", ["1+2x+x^2", "(x+1)^2 = x^2+2x+1"]),
        ("Simplify $(3x+2)-(x-1)$.", "2x+3", ["3+2x"]),
    ]
    assert (await equal(patient_workers, wrong), await different(patient_workers, right)) == ([], [])
