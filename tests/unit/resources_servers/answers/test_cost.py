"""Expensive answers are rejected cheaply, and the next answer is compared without delay."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from functools import cache
from time import process_time

import pytest

from rollyard.resources_servers.answers.equality import MAX_CHARACTERS, compare_without_algebra
from rollyard.resources_servers.answers.extraction import FoundAnswer
from rollyard.resources_servers.answers.finders import boxed
from rollyard.resources_servers.answers.formula_complexity import why_too_costly
from rollyard.resources_servers.answers.grader import LONG, AnswerForm, AnswerGrader, read
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS as GSM8K
from rollyard.resources_servers.math.app import ANSWER_FORMS as MATH
from tests.unit.resources_servers.answers.grading import compare_answers, verification_of

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


def test_nesting_and_length_never_cause_a_recursion_error_and_a_long_answer_is_not_parsed() -> None:
    for piece in ("^", "a^", "[1,2[", "2^{", "(", r"\frac", r"\sqrt", "&", "'", r"\{", "_", "|^", r"x_{\text{"):
        for bomb in (piece * (1990 // len(piece)), piece * 200 + "1" + "^" * 900, "1" + piece * 300 + "}" * 300):
            result = compare_without_algebra("7", bomb[:MAX_CHARACTERS])
            assert result is None or not result.equal
    for answer in ("\\(" * 500_000, "x=" * 500_000, " " * 1_000_000, "9" * 1_000_000, "1 " * 20_000):
        result = compare_without_algebra("42", answer)
        assert result is not None and str(MAX_CHARACTERS) in result.reason.replace(",", "")


ORDINARY = [
    "2^{100}", "3^{1000}", r"\frac{1}{2004!}", "10^{20}", "i^{2005}", "(x+1)^{100}", "x^{100}-1", r"e^{10}", "2^{2^x}",
    r"\frac{-1+\sqrt{5}}{2}", r"\sqrt{2+\sqrt{2+\sqrt{2}}}", "(x-1)(x+1)(x^2+1)(x^4+1)(x^8+1)", r"\binom{20}{10}",
    r"(-\infty,-3)\cup(-3,-2)\cup(-2,0)\cup(0,5)\cup(5,\infty)", r"\sum_{k=1}^{100} k", "1,000,000,000,000",
]  # fmt: skip


def test_ordinary_formulas_are_within_the_limits_and_a_gold_answer_of_the_same_size_raises_them() -> None:
    assert [answer for answer in ORDINARY if why_too_costly("42", answer)] == []
    assert why_too_costly("42", "x^{2005}") is not None
    assert why_too_costly("x^{2005}", "x^{2005}+0") is None


LENGTH = 4_000
MAX_RATIO = 8
"""CPU time for four times the text, relative to that of the text; a quadratic scan has 16."""
NEGLIGIBLE_S = 0.05
"""Times below this are not compared."""
EVERY_FORM = AnswerForm(stops=(), strict=boxed, lenient=(*GSM8K["chat"].lenient, *MATH["chat"].lenient))
HOSTILE = [
    r"\(", "$", "$$", r"\[", "$x", "$1", "\\$", r"\boxed{", r"\boxed", r"\boxed{1} ", r"\boxed{{{{", r"\boxed{1} or ",
    "<answer>", "</answer>", "<answer>1</answer>", "<think>", "</think>", "The answer is ", "answer is.", "Answer:\n",
    "The answer to ", "The answer is 12 or ", "####", "#### ", "#### 1\n", "(", ")", "1,", "12,345,", "9", " ", "\n",
    "\t", "{", "}", "\\", "*", "|", "-", "1-", "'answer': ", '"answer": "', "答案", "答案是", "or ", "1 or ", "not ",
    "wait, ",    "no, wait ", "I hope it is correct", "final answer is", "Therefore, ",
    r"\text{", "x = ", "x=1, ", "| Answer |\n",
    "## Answer\n", "Answer\n===\n", "- 1\n", "1\n", "Answer: \\[",
]  # fmt: skip


@cache
def seconds(text: str) -> float:
    """The CPU time of one reading: the best of up to five, because a collection of garbage may fall into one."""
    response = verification_of(text)
    assert response.text == text
    best = math.inf
    for _ in range(5):
        start = process_time()
        read(response, EVERY_FORM)
        best = min(best, process_time() - start)
        if best < NEGLIGIBLE_S:
            break
    return best


def test_the_cost_of_extraction_is_linear_in_the_text() -> None:
    texts = [("", piece) for piece in HOSTILE] + [
        ("The answer is", filler) for filler in (" ", "\t", "*", "-", "|", "= ")
    ]
    slow = [
        (lead, piece)
        for lead, piece in texts
        if (long := seconds(lead + piece * (4 * LENGTH // len(piece)))) > NEGLIGIBLE_S
        and long > MAX_RATIO * seconds(lead + piece * (LENGTH // len(piece)))
    ]
    assert slow == []


@pytest.mark.parametrize(("length", "in_thread"), [(LONG - 1, False), (LONG, True)])
async def test_a_long_text_is_processed_outside_the_event_loop(length: int, in_thread: bool) -> None:
    threads = list[int]()

    def record_thread(text: str) -> FoundAnswer | None:
        threads.append(threading.get_ident())
        return None

    form = AnswerForm(stops=(), strict=record_thread, lenient=(record_thread,))
    await AnswerGrader(None).grade("12", verification_of("a" * length), form)
    assert [thread != threading.get_ident() for thread in threads] == [in_thread, in_thread]
