"""GSM8K's answers: the gold ones, the authors' labelled ones, and what must not pass."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.gsm8k.prompt_formats import ANSWER_FORMS, gold_number
from tests.unit.resources_servers.answers.grading import DATA, judged, rows_of, said

TEST = DATA / "gsm8k" / "test.jsonl"
SOLUTIONS = DATA / "gsm8k" / "example_model_solutions.jsonl.gz"


def golds() -> list[str]:
    numbers = [gold_number(row["answer"]) for row in rows_of(TEST)]
    assert None not in numbers
    return [number for number in numbers if number]


@pytest.mark.parametrize(
    ("form", "wording"),
    [
        ("chat", r"She sells 9 eggs. \boxed{%s}"),
        ("lm_eval", "She sells 9 eggs.\n#### %s"),
        ("lm_eval_cot", "She sells 9 eggs. The answer is %s."),
    ],
)
async def test_every_gold_answer_is_right_in_the_requested_form(form: str, wording: str) -> None:
    found = await judged(AnswerGrader(None), ANSWER_FORMS[form], [(gold, wording % gold) for gold in golds()])
    assert (sum(one.strict for one in found), sum(one.lenient for one in found)) == (1319, 1319)


@pytest.mark.parametrize(
    "wording", ["#### %s", "The answer is %s.", r"\boxed{%s}", "**Answer:** $%s", "It is %s eggs."]
)
async def test_every_gold_answer_is_right_in_any_form_for_the_lenient_score(wording: str) -> None:
    found = await judged(AnswerGrader(None), ANSWER_FORMS["chat"], [(gold, wording % gold) for gold in golds()])
    assert sum(one.lenient for one in found) == 1319


async def test_every_gold_solution_is_right_whole() -> None:
    pairs = [(str(gold_number(row["answer"])), row["answer"]) for row in rows_of(TEST)]
    found = await judged(AnswerGrader(None), ANSWER_FORMS["lm_eval"], pairs)
    assert sum(one.strict and one.lenient for one in found) == 1319


async def test_the_authors_labels_of_model_answers_are_agreed_with() -> None:
    labelled = [
        (row["ground_truth"].rpartition("A: ")[2], answer["solution"], answer["is_correct"])
        for row in rows_of(SOLUTIONS)
        for answer in row.values()
        if isinstance(answer, dict)
    ]
    found = await judged(AnswerGrader(None), ANSWER_FORMS["chat"], [(gold, text) for gold, text, _ in labelled])
    agreed = [one.lenient == label for one, (_, _, label) in zip(found, labelled, strict=True)]
    assert (sum(agreed), len(agreed), sum(label for *_, label in labelled)) == (5276, 5276, 2001)


async def test_no_wrong_number_made_from_a_gold_one_is_right() -> None:
    judge = AnswerGrader(None)
    for gold in golds()[::8]:
        value = int(gold.replace(",", ""))
        wrong = [str(value + 1), str(value - 1), f"{value}.5", f"{value}1", str(10 * value + 1), f"1{abs(value)}"]
        wrong += [str(-value), f"{value * 10}"] if value else []
        for number in wrong:
            for form, text in (("chat", rf"\boxed{{{number}}}"), ("lm_eval", f"#### {number}")):
                one = await judge.judge(gold, said(text), ANSWER_FORMS[form])
                assert not (one.strict or one.lenient), (gold, text)


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
    one = await AnswerGrader(None).judge("18", said(text), ANSWER_FORMS["chat"])
    assert one.lenient, one


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
async def test_what_is_not_the_right_number_is_wrong(text: str) -> None:
    one = await AnswerGrader(None).judge("18", said(text), ANSWER_FORMS["chat"])
    assert not (one.strict or one.lenient), one


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
async def test_in_a_text_that_was_cut_off_only_a_finished_answer_counts(text: str, right: bool) -> None:
    one = await AnswerGrader(None).judge("18", said(text, "incomplete"), ANSWER_FORMS["chat"])
    assert one.lenient is right


async def test_what_follows_a_stop_string_does_not_count() -> None:
    judge = AnswerGrader(None)
    text = "She has 18.\n#### 18\n\nQuestion: Tom has 5 eggs?\nAnswer: 5\n#### 5"
    assert (await judge.judge("18", said(text), ANSWER_FORMS["lm_eval"])).lenient
    assert (
        await judge.judge("18", said("The answer is 18.\n\nQ: Tom?\nA: The answer is 5."), ANSWER_FORMS["lm_eval_cot"])
    ).strict


async def test_the_strict_score_of_the_harness_form_is_the_harness_own() -> None:
    judge, reading = AnswerGrader(None), ANSWER_FORMS["lm_eval"]
    scores = [
        await judge.judge("1,018", said(f"#### {text}"), reading) for text in ("1018", "1,018", "1018.00", "$1018")
    ]
    assert [one.strict for one in scores] == [True, True, False, False]
    assert [one.lenient for one in scores] == [True, True, True, True]
