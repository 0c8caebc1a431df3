"""Expensive answers are rejected cheaply, and the next answer is compared without delay."""

from __future__ import annotations

import asyncio
import time

import pytest

from rollyard.resources_servers.answers.equality import MAX_CHARACTERS, compare_without_algebra
from rollyard.resources_servers.answers.formula_complexity import why_too_costly
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.unit.resources_servers.answers.grading import compare_answers

POWERS = [
    "9^{9^{9}}", "9^{9^{9^9}}", "9^9^9", "10^{10^{10}}", "2^{2^{2^{2^{2^2}}}}", "99999999^{99999999}",
    "((9^9)^9)^{9^9}", "7^{1000000}", "(1+10^{-9})^{10^9}", "x^{100000}-1", "(x^{5000}-1)(x^{4999}-1)",
    "(x+1)^{10000}", "((x+1)^{100})^{100}", "(x+1)^{1000}(x-1)^{1000}", "(a+b+c+d)^{60}", "(x+y+z)^{500}",
    "1" * 900 + "^{" + "1" * 900 + "}", "e^{e^{1000}}",
    "".join(f"({letter}+1)" for letter in "abcdefghjklmnopqrstuvwxyz"), "(" * 9 + "x+1" + ")^9" * 9,
]  # fmt: skip
FUNCTIONS = [
    "1000000!", "(1000!)!", "9!!!!", "((5!)!)!", r"\binom{10^9}{5}", r"\binom{1000000}{500000}",
    r"\sum_{k=1}^{10^9} \frac{1}{k}", r"\prod_{k=1}^{10^8} k", r"\sum_{k=1}^{1000000} k^{k}",
    r"\int_0^{100} e^{x^2}\sin(x^3)\,dx", r"\frac{d}{dx}\frac{d}{dx}\frac{d}{dx} \sin(\cos(\tan(\sin x)))",
    r"\sin(10^{100000})", r"\log(\log(10^{10^{10}}))", r"\sin(\sin(\sin(\sin(\sin(\sin(\sin 1))))))",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{100000}", r"\lfloor 10^{10^9} \rfloor", r"\gcd(10^{10^8}, 7)",
    r"\sqrt{2+\sqrt{3+\sqrt{5+\sqrt{7+\sqrt{11}}}}}", "+".join(rf"\sqrt{{{n}}}" for n in range(2, 60)),
    r"\begin{pmatrix}" + r"\\".join("&".join("x" * 12) for _ in range(12)) + r"\end{pmatrix}",
]  # fmt: skip
REPEATED = [
    "1+" * 900 + "1", "-" * 1500 + "1", "2^" * 400 + "2", "!" * 500, r"\frac" * 300 + "1", r"\sqrt" * 300 + "2",
    "x=" * 500 + "7", "7=" * 500 + "7", "|x" * 300, "a," * 900, r"\cup(1,2)" * 150, "x_{" * 9 + "1" + "}" * 9,
    r"\{" * 9 + "1" + r"\}" * 9, "9" * 1900, "1e999999999", r"1.5\times10^{999999999}", r"\text{and }" * 180,
    r"\infty^" * 100 + "2", "x^2+" * 300 + "1", "A" * 1900 + "=7", "a " * 900 + "= 7", "the " * 450 + "7",
    r"\text{" * 9 + "a" + "}" * 9, "((((" * 400, "0." + "3" * 1800 + "...",
]  # fmt: skip
BOMBS = [*POWERS, *FUNCTIONS, *REPEATED]


@pytest.mark.parametrize("gold", ["42", "x+1", "5!", r"\{1,2\}", "x^2+y^2=4", r"\cos 58^\circ"])
def test_an_expensive_answer_is_detected_cheaply_for_any_gold_answer(gold: str) -> None:
    started = time.process_time()
    results = [compare_without_algebra(gold, bomb) for bomb in BOMBS]
    spent = time.process_time() - started
    assert spent < 0.05 * len(BOMBS)
    assert [result for result in results if result is not None and result.equal] == []
    assert sum(result is not None for result in results) >= len(BOMBS) - 8


async def test_expensive_answers_are_wrong_and_no_failures_and_a_correct_one_after_them_is_accepted() -> None:
    pool = WorkerPool(1, 1.0)  # the default: on a busy host, a gold answer may take more than a quarter of a second
    try:
        waiting = [asyncio.create_task(compare_answers(pool, "x+1", bomb)) for bomb in BOMBS]
        assert (await compare_answers(pool, "x+1", "1+x")).equal
        assert [result for result in await asyncio.gather(*waiting) if result.equal] == []
    finally:
        await pool.close()


def test_nesting_never_causes_a_recursion_error() -> None:
    for piece in ("^", "a^", "[1,2[", "2^{", "(", r"\frac", r"\sqrt", "&", "'", r"\{", "_", "|^", r"x_{\text{"):
        for bomb in (piece * (1990 // len(piece)), piece * 200 + "1" + "^" * 900, "1" + piece * 300 + "}" * 300):
            result = compare_without_algebra("7", bomb[:MAX_CHARACTERS])
            assert result is None or not result.equal


@pytest.mark.parametrize(
    "answer",
    ["2^{100}", "3^{1000}", r"\frac{1}{2004!}", "10^{20}", "i^{2005}", "(x+1)^{100}", "x^{100}-1", r"e^{10}", "2^{2^x}",
     r"\frac{-1+\sqrt{5}}{2}", r"\sqrt{2+\sqrt{2+\sqrt{2}}}", "(x-1)(x+1)(x^2+1)(x^4+1)(x^8+1)", r"\binom{20}{10}",
     r"(-\infty,-3)\cup(-3,-2)\cup(-2,0)\cup(0,5)\cup(5,\infty)", r"\sum_{k=1}^{100} k", "1,000,000,000,000"],
)  # fmt: skip
def test_ordinary_formulas_are_within_the_limits(answer: str) -> None:
    assert why_too_costly("42", answer) is None


def test_a_gold_answer_of_the_same_size_raises_the_bounds() -> None:
    assert why_too_costly("42", "x^{2005}") is not None
    assert why_too_costly("x^{2005}", "x^{2005}+0") is None


def test_a_long_answer_is_rejected_before_it_is_parsed() -> None:
    started = time.process_time()
    for answer in ("\\(" * 500_000, "x=" * 500_000, " " * 1_000_000, "9" * 1_000_000):
        result = compare_without_algebra("42", answer)
        assert result is not None and str(MAX_CHARACTERS) in result.reason.replace(",", "")
    assert time.process_time() - started < 0.5
