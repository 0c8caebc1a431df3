"""CPU time for extracting an answer from an adversarial text."""

from __future__ import annotations

import math
import threading
from functools import cache
from time import process_time

import pytest

from rollyard.resources_servers.answers.extraction import Found
from rollyard.resources_servers.answers.finders import boxed
from rollyard.resources_servers.answers.grader import LONG, AnswerForm, AnswerGrader, read
from rollyard.resources_servers.gsm8k.prompt_formats import ANSWER_FORMS as GSM8K
from rollyard.resources_servers.math.prompt_formats import ANSWER_FORMS as MATH
from tests.unit.resources_servers.answers.grading import verification_of

LENGTH = 4_000
MAX_RATIO = 8
"""CPU time for four times the text, relative to that of the text; a quadratic scan has 16."""
MAX_PROSE_RATIO = 30
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

_FILLERS = [" ", "\t", "*", "-", "|", "= "]


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
    slow = [
        (lead, piece)
        for lead in ("", "The answer is")
        for piece in (HOSTILE if not lead else _FILLERS)
        if (long := seconds(lead + piece * (4 * LENGTH // len(piece)))) > NEGLIGIBLE_S
        and long > MAX_RATIO * seconds(lead + piece * (LENGTH // len(piece)))
    ]
    assert slow == []


def test_an_adversarial_text_costs_little_more_than_prose_of_its_length() -> None:
    prose = seconds("She has 3 apples, and he has $4. " * (4 * LENGTH // 33))
    slow = [piece for piece in HOSTILE if seconds(piece * (4 * LENGTH // len(piece))) > MAX_PROSE_RATIO * prose]
    assert slow == []


@pytest.mark.parametrize(("length", "in_thread"), [(LONG - 1, False), (LONG, True)])
async def test_a_long_text_is_processed_outside_the_event_loop(length: int, in_thread: bool) -> None:
    threads = list[int]()

    def record_thread(text: str) -> Found | None:
        threads.append(threading.get_ident())
        return None

    await AnswerGrader(None).grade(
        "12", verification_of("a" * length), AnswerForm(stops=(), strict=record_thread, lenient=(record_thread,))
    )
    assert [thread != threading.get_ident() for thread in threads] == [in_thread, in_thread]
