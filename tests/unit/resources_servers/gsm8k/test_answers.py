"""GSM8K's answers: the gold answers, model answers with the authors' labels, and wrong answers."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS, gold_number
from tests.unit.resources_servers.answers.grading import DATA, grade_all, rows_of, verification_of

TEST = DATA / "gsm8k" / "test.jsonl"
SOLUTIONS = DATA / "gsm8k" / "example_model_solutions.jsonl.gz"
REQUESTED = [
    ("chat", r"She sells 9 eggs. \boxed{%s}"),
    ("lm_eval", "She sells 9 eggs.\n#### %s"),
    ("lm_eval_cot", "She sells 9 eggs. The answer is %s."),
]
UNREQUESTED = ["#### %s", "The answer is %s.", r"\boxed{%s}", "**Answer:** $%s", "It is %s eggs."]
FORMS: list[tuple[str, str | None, bool]] = [
    *((form, wording, True) for form, wording in [*REQUESTED, ("lm_eval", None)]),
    *(("chat", wording, False) for wording in UNREQUESTED),
]


async def right_golds(form: str, wording: str | None, *, strict: bool, step: int) -> int:
    """Number of right grades of every `step`-th gold answer in this wording; None: of the complete gold solutions."""
    rows = [(str(gold_number(row["answer"])), row["answer"]) for row in rows_of(TEST)[::step]]
    pairs = [(gold, wording % gold if wording else solution) for gold, solution in rows]
    grades = await grade_all(AnswerGrader(None), ANSWER_FORMS[form], pairs)
    return sum(grade.lenient and (grade.strict or not strict) for grade in grades)


def labelled(step: int) -> list[tuple[str, str, bool]]:
    """(gold answer, model answer, whether it is right according to the authors), of every `step`-th row."""
    return [
        (row["ground_truth"].rpartition("A: ")[2], answer["solution"], answer["is_correct"])
        for row in rows_of(SOLUTIONS)[::step]
        for answer in row.values()
        if isinstance(answer, dict)
    ]


async def agreements(pairs: list[tuple[str, str, bool]]) -> list[bool]:
    """Whether the lenient grade is the authors' label, for each answer."""
    grades = await grade_all(AnswerGrader(None), ANSWER_FORMS["chat"], [(gold, text) for gold, text, _ in pairs])
    return [grade.lenient == label for grade, (_, _, label) in zip(grades, pairs, strict=True)]


@pytest.mark.parametrize(("form", "wording", "strict"), FORMS)
async def test_gold_answers_are_right_in_any_form(form: str, wording: str, strict: bool) -> None:
    assert await right_golds(form, wording, strict=strict, step=8) == 165


async def test_the_grades_agree_with_the_authors_labels_of_model_answers() -> None:
    sample = labelled(10)
    agreed = await agreements(sample)
    assert len(agreed) == 528 and all(agreed)
    assert 100 < sum(label for *_, label in sample) < 400


async def test_wrong_numbers_derived_from_gold_answers_are_rejected() -> None:
    grader = AnswerGrader(None)
    for gold in [str(gold_number(row["answer"])) for row in rows_of(TEST)[::24]]:
        value = int(gold.replace(",", ""))
        wrong = [str(value + 1), str(value - 1), f"{value}.5", f"{value}1", str(10 * value + 1), f"1{abs(value)}"]
        wrong += [str(-value), f"{value * 10}"] if value else []
        for number in wrong:
            for form, text in (("chat", rf"\boxed{{{number}}}"), ("lm_eval", f"#### {number}")):
                grade = await grader.grade(gold, verification_of(text), ANSWER_FORMS[form])
                assert not (grade.strict or grade.lenient), (gold, text)


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{18.0}", r"\boxed{\$18}", r"\boxed{\frac{36}{2}}", r"\boxed{18\%}", r"\boxed{18 \text{ dollars}}",
        r"\boxed{18 eggs per day}", r"\boxed{x = 18}", r"\boxed{１８}", r"\boxed{\text{18 dollars}}", r"$\boxed{18}$.",
        r"\boxed{17} is wrong, \boxed{18}", r"hm \boxed{17}</think> So \boxed{18}", "<answer>18</answer>",
        "The answer is $18 per day.", "The answer is **18**.", "Answer: $18$", r"So the final answer is \(18\).",
        "The answer is 9 * 2 = 18 dollars.", "The answer is 18 because 9*2=18", "The answer is:\n\n18", "18",
        "The answer is 18. Bye, now., ok", "A: 18", "The answer is 18, not 19.", "The answer is 20-2 = 18.",
        "答案是18。",
    ],
)  # fmt: skip
async def test_the_right_number_in_another_notation_is_right(text: str) -> None:
    grade = await AnswerGrader(None).grade("18", verification_of(text), ANSWER_FORMS["chat"])
    assert grade.lenient, grade


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", r"\boxed{}", r"The answer is 18. \boxed{}", r"\boxed{18", r"<think>\boxed{18}</think>",
        r"<think>it is \boxed{18}", r"<think>18</think>\boxed{17}", r"\boxed{18} no, \boxed{17}",
        r"\boxed{17} or \boxed{18}",
        r"\boxed{17, 18}", r"\boxed{18 or 19}", r"\boxed{18\text{ or }19}", r"\boxed{1 8}", r"\boxed{-18}",
        r"\boxed{−18}",
        r"\boxed{18 \text{ thousand}}", r"\boxed{0.18}", r"\boxed{18 = 19}", r"\boxed{19 = 18}", "eighteen or so",
        r"\boxed{1e1000000000}", r"\boxed{" + "9" * 5000 + "}", r"\boxed{18:00}", r"\boxed{18_{9}}",
        "The answer is 18 or 19.", "The answer is 18-20.", "The answer is $18 to $20.", "The answer is not 18.",
        "The answer is between 18 and 20.",
    ],
)  # fmt: skip
async def test_a_wrong_unclear_or_missing_number_is_rejected(text: str) -> None:
    grade = await AnswerGrader(None).grade("18", verification_of(text), ANSWER_FORMS["chat"])
    assert not (grade.strict or grade.lenient), grade


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("so 9 * 2 = 18", False),
        ("#### 18", False),
        ("The answer is 18", False),
        ("#### 18\nThat is because", True),
        (r"\boxed{18} since", True),
        (r"\boxed{18", False),
    ],
)
async def test_in_a_truncated_text_only_a_complete_answer_counts(text: str, right: bool) -> None:
    grade = await AnswerGrader(None).grade("18", verification_of(text, "incomplete"), ANSWER_FORMS["chat"])
    assert grade.lenient is right


async def test_text_after_a_stop_string_does_not_count() -> None:
    for form, text in (
        ("lm_eval", "She has 18.\n#### 18\n\nQuestion: Tom has 5 eggs?\nAnswer: 5\n#### 5"),
        ("lm_eval_cot", "The answer is 18.\n\nQ: Tom?\nA: The answer is 5."),
    ):
        assert (await AnswerGrader(None).grade("18", verification_of(text), ANSWER_FORMS[form])).strict


async def test_the_strict_score_of_the_lm_eval_form_equals_that_of_lm_eval() -> None:
    texts = [f"#### {text}" for text in ("1018", "1,018", "1018.00", "$1018")]
    scores = await grade_all(AnswerGrader(None), ANSWER_FORMS["lm_eval"], [("1,018", text) for text in texts])
    assert [(grade.strict, grade.lenient) for grade in scores] == [(True, True)] * 2 + [(False, True)] * 2
