"""Rollouts that fail in known ways, with varied words and tasks, and rollouts without any pattern.

The answers to GSM8K are those of four models (shared/data/gsm8k), also for the wrong ones.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import orjson

from rollyard.records.types import Json
from tests.support.finding_rows import played
from tests.support.stacks import SHARED

MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
TOOLS = ("calculate", "look_up")
_GIVE_UPS = (
    ("", "", "Sorry, ", "I'm sorry, but ", "Unfortunately, ", "I apologize: "),
    ("I cannot", "I am not able to", "I can't", "I am unable to", "I don't know how to"),
    (" solve this problem", " solve this", " find the solution", " answer this question", " work this out"),
    (".", " at the moment.", ", so I give up.", ". I give up.", " without more information."),
    ("", "", " Sorry about that.", " Please ask someone else.", " Maybe try another one."),
)
"""Parts of a sentence, of which one each is chosen."""
_ARGUMENT_ERRORS = (
    "Invalid arguments: field 'expression' is required, found 'query'",
    "Invalid arguments: 'expression' must be a string, found a number",
    "Invalid arguments: field 'expression' is required, found 'text'",
)
_ENVIRONMENT_ERRORS = (
    "Connection refused: the calculation service is unavailable",
    "Service unavailable: connection to the calculation service was refused (503)",
    "Internal server error: the calculation service did not respond",
)


class Problem(NamedTuple):
    question: str
    gold: str
    wrong: tuple[str, ...]
    right: tuple[str, ...]


@cache
def problems() -> tuple[Problem, ...]:
    """The problems of GSM8K with the models' answers; those that at least one model solved, and one did not."""
    path = SHARED / "data/gsm8k/example_model_solutions.jsonl.gz"
    found = []
    for line in gzip.decompress(path.read_bytes()).splitlines():
        row = orjson.loads(line)
        answers = [(row[model]["is_correct"], row[model]["solution"]) for model in MODELS]
        wrong = tuple(text for is_correct, text in answers if not is_correct and "\nA: " in text)
        right = tuple(text for is_correct, text in answers if is_correct and "\nA: " in text)
        if wrong and right:
            found.append(Problem(row["question"], row["ground_truth"].rpartition("A: ")[2], wrong, right))
    return tuple(found)


class Case:
    """One rollout of a task, with its own random numbers."""

    def __init__(self, task: int, repeat: int, seed: int = 0) -> None:
        self.random = random.Random(f"{seed}-{task}-{repeat}")
        self.problem = problems()[task % len(problems())]
        self.task, self.repeat = task, repeat

    def row(self, says: str, *, calls: Sequence[tuple[str, str, str]] = (), extracted: str = "", **more: Any) -> Json:
        more = {"finish_reason": "answered", "truncated": False, **more}
        return played(
            self.task,
            self.repeat,
            says=says,
            calls=calls,
            tools=TOOLS,
            prompt=f"{self.problem.question} End with 'A: ' and the number.",
            expected_answer=self.problem.gold,
            extracted_answer=extracted,
            **more,
        )

    def calculation(self) -> tuple[str, str, str]:
        one, other = self.random.randint(2, 99), self.random.randint(2, 99)
        return "calculate", orjson.dumps({"expression": f"{one}*{other}"}).decode(), str(one * other)


def solved(case: Case) -> Json:
    text = case.random.choice(case.problem.right)
    calls = [case.calculation() for _ in range(case.random.randint(1, 3))]
    return case.row(text, calls=calls, extracted=case.problem.gold) | {"reward": 1.0, "success": True}


def wrong_number(case: Case) -> Json:
    text = case.random.choice(case.problem.wrong)
    calls = [case.calculation() for _ in range(case.random.randint(1, 3))]
    return case.row(text, calls=calls, extracted=text.rpartition("A: ")[2])


def wrong_format(case: Case) -> Json:
    body, _, number = case.random.choice(case.problem.right + case.problem.wrong).rpartition("\nA: ")
    ending = case.random.choice(("So the answer is **{}**.", "The final answer is **{}**.", "Therefore, it is **{}**."))
    calls = [case.calculation() for _ in range(case.random.randint(1, 3))]
    return case.row(f"{body}\n{ending.format(number)}", calls=calls, reason="the answer has no line 'A: '")


def truncated(case: Case) -> Json:
    text = case.random.choice(case.problem.right + case.problem.wrong).rpartition("\nA: ")[0]
    words = text.split(" ")
    cut = " ".join(words[: max(4, int(len(words) * case.random.uniform(0.4, 0.9)))])
    calls = [case.calculation() for _ in range(case.random.randint(1, 3))]
    return case.row(cut, calls=calls, finish_reason="length", truncated=True)


def give_up(case: Case) -> Json:
    return case.row("".join(case.random.choice(part) for part in _GIVE_UPS))


def loop(case: Case) -> Json:
    name = case.random.choice(("look_up", "calculate"))
    value = case.random.choice(("unit price", "total", "12*4", "number of days"))
    arguments = orjson.dumps({"expression" if name == "calculate" else "topic": value}).decode()
    calls = [(name, arguments, "nothing new")] * case.random.randint(8, 20)
    return case.row("", calls=calls, finish_reason="max_steps", truncated=True)


def wrong_arguments(case: Case) -> Json:
    calls = []
    for _ in range(case.random.randint(2, 4)):
        key = case.random.choice(("query", "text", "expression"))
        value: object = case.random.randint(1, 99) if key == "expression" else f"{case.random.randint(1, 99)} + 3"
        calls.append(("calculate", orjson.dumps({key: value}).decode(), case.random.choice(_ARGUMENT_ERRORS)))
    text = case.random.choice(case.problem.wrong)
    return case.row(text, calls=calls, extracted=text.rpartition("A: ")[2])


def environment_error(case: Case) -> Json:
    calls = [
        (*case.calculation()[:2], case.random.choice(_ENVIRONMENT_ERRORS)) for _ in range(case.random.randint(1, 3))
    ]
    text = case.random.choice(case.problem.wrong)
    return case.row(text, calls=calls, extracted=text.rpartition("A: ")[2])


KINDS: dict[str, Callable[[Case], Json]] = {
    "loop": loop,
    "give-up": give_up,
    "wrong format": wrong_format,
    "wrong arguments": wrong_arguments,
    "truncated": truncated,
    "wrong number": wrong_number,
    "environment error": environment_error,
}


def recorded(kinds: Sequence[str], *, tasks: int, repeats: int, solve: float = 0.4, seed: int = 0) -> list[Json]:
    """Rows of a run in which a share `solve` of the rollouts is solved and every other one fails in one of the ways.

    The key `kind` of a row names the way. It is a string, which clusters do not read.
    """
    rows = []
    for task in range(tasks):
        for repeat in range(repeats):
            case = Case(task, repeat, seed)
            kind = "solved" if case.random.random() < solve else case.random.choice(kinds)
            rows.append((solved if kind == "solved" else KINDS[kind])(case) | {"kind": kind})
    return rows


def noise(count: int, seed: int = 0) -> list[Json]:
    """Failed rollouts whose properties are independent of each other, so that there is nothing to find."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(3000)]
    rows = []
    for task in range(count):
        calls = [
            (f"tool{chance.randint(0, 9)}", orjson.dumps({"x": chance.choice(words)}).decode(), chance.choice(words))
            for _ in range(chance.randint(0, 12))
        ]
        says = " ".join(chance.choices(words, k=chance.choice((5, 12, 40, 120, 400)))) + chance.choice(
            (".", "", "!", ")")
        )
        reason = chance.choice(("answered", "max_steps", "length", "done", "truncated"))
        tools = [f"tool{number}" for number in range(10)]
        answers: dict[str, Any] = {"expected_answer": "7", "extracted_answer": chance.choice(("", "8", "x"))}
        flags: dict[str, Any] = {"truncated": chance.random() < 0.5, "timed_out": chance.random() < 0.5}
        rows.append(played(task, says=says, calls=calls, tools=tools, finish_reason=reason, **answers, **flags))
    return rows
