"""Overlap with a test set: the same questions are found in every form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rollyard.records.types import Json
from rollyard.services.datasets.validate import FileReport, validate, words_of
from tests.unit.services.datasets.files import row, write_rows

NAMES = [first + rest for first in ("A", "B", "C") for rest in ("nna", "ella", "ilda", "ora", "umi", "yra", "ess")]
LONG = [
    f"{name} has {number} apples, sells {number + 3} of them at the market for ${number}.50 each and gives the rest to "
    f"{number + 7} friends of $\\text{{{name}}}$'s. How many dollars does {name} have after {number} days?"
    for number, name in enumerate(NAMES, 4)
]
SHORT = [f"What is {number} + {number * 3}?" for number in range(20, 41)]
SHOTS = "".join(f"Question: What is {number} - 1?\nAnswer: {number - 1}\n\n" for number in range(5))


def chat(question: str) -> Json:
    messages = [
        {"role": "system", "content": "You are a careful solver of problems."},
        {"role": "user", "content": question},
    ]
    return {"responses_create_params": {"input": messages}}


FORMS: dict[str, Callable[[str], Json]] = {
    "plain": lambda question: {"question": question, "answer": "1"},
    "problem": lambda question: {"problem": question},
    "chat": chat,
    "few-shot": lambda question: {"responses_create_params": {"input": f"{SHOTS}Question: {question}\nAnswer:"}},
    "NeMo Gym": lambda question: row(question, question=question, expected_answer="1"),
    "parts": lambda question: row("", responses_create_params={
        "input": [{"role": "user", "content": [{"type": "input_text", "text": question}]}]}),
    "messages": lambda question: {"messages": [{"role": "user", "content": question}, {"role": "assistant"}]},
    "instructed": lambda question: chat(f"{question}\n\nPlease reason, and put it in \\boxed{{}}."),
    "shouted": lambda question: chat(question.upper().replace(",", " ,").replace("?", "")),
    "LaTeX": lambda question: {"problem": question.replace("$\\text{", "\\(\\mathrm{").replace("}$", "}\\)")},
}  # fmt: skip


def overlap_report(tmp_path: Path, train: list[Json], test: list[Json]) -> FileReport:
    files = [write_rows(tmp_path / f"{name}.jsonl", [*lines]) for name, lines in (("train", train), ("test", test))]
    (report,) = validate(files[:1], files[1:])
    return report


# Every form of a training set with about half of the forms of a test set, and every form of both with both lengths.
PAIRS = [
    (train, test, "long" if (first // 2 + second) % 2 else "short")
    for first, train in enumerate(["chat", "few-shot", "NeMo Gym", "parts", "instructed", "shouted"])
    for second, test in enumerate(FORMS)
    if (first + second // 2) % 2
]


@pytest.mark.parametrize(("train", "test", "length"), PAIRS)
def test_the_same_questions_are_found_in_any_pair_of_forms(tmp_path: Path, train: str, test: str, length: str) -> None:
    questions = LONG if length == "long" else SHORT
    report = overlap_report(tmp_path, [FORMS[train](q) for q in questions], [FORMS[test](q) for q in questions])
    assert report.problems == 0
    assert max(report.overlap["question"], report.overlap["row"]) == len(questions)


@pytest.mark.parametrize(
    ("form", "questions"), [("chat", SHORT), ("few-shot", LONG), ("NeMo Gym", LONG), ("instructed", SHORT)]
)
def test_other_questions_in_the_same_prompt_are_not_found(tmp_path: Path, form: str, questions: list[str]) -> None:
    half = len(questions) // 2
    prompts = [FORMS[form](question) for question in questions]
    assert not any(overlap_report(tmp_path, prompts[:half], prompts[half:]).overlap.values())


TINY = [f"{number} + {number * 3}?" for number in range(20, 41)]


def test_ids_and_questions_are_counted_with_an_example_each(tmp_path: Path) -> None:
    train = [row("Something else", id="x1"), row("Something new", id="x2"), row(LONG[0], id="x3")]
    test = [{"id": "x1", "question": LONG[0]}, {"id": "y", "question": LONG[1]}]
    report = overlap_report(tmp_path, train, test)
    assert report.overlap == {"row": 0, "id": 1, "question": 1}
    assert [(match.kind, match.line, match.first_line) for match in report.first_overlap] == [
        ("id", 1, 1),
        ("question", 3, 1),
    ]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("$x^2-1$", "\\( x^{2} - 1 \\)", True),
        ("x - 1", "x + 1", False),
        ("3.5 km", "35 km", False),
        ("1,000 cats", "1000 cats", True),
        ("\\dfrac{1}{2}", "\\frac{1}{2}", True),
        ("A two-step plan!", "a two step plan!", True),
        ("\\text{Find } x\\,", "find x", True),
        ("求 x 的值。", "求x的值", True),
        ("ﬁnd “x”", "find \"x\"", True),
    ],
)  # fmt: skip
def test_word_comparison_ignores_case_punctuation_and_latex_but_not_numbers_and_signs(
    one: str, other: str, same: bool
) -> None:
    assert (words_of(one) == words_of(other)) == same
