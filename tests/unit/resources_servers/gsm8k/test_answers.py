"""GSM8K's answers: the gold answers, model answers with the authors' labels, and wrong answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.answers.grader import AnswerGrader
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS, gold_number, server
from rollyard.resources_servers.gsm8k.prepare import main
from rollyard.services.server.settings import parse_settings
from tests.support.waiting import deadline_s
from tests.unit.resources_servers.answers.grading import DATA, grade_all, in_process_server, rows_of, verification_of

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


ROW: Json = {"question": "How many?", "expected_answer": "18", "form": "chat"}


async def test_a_verdict_reports_the_extracted_answer_its_method_and_the_reason() -> None:
    async with in_process_server(server) as environment:
        right = await environment.verdict(ROW, r"9 times 2: \boxed{18}")
        lenient = await environment.verdict(ROW, "The answer is 18.")
        wrong = await environment.verdict(ROW, r"\boxed{17}")
        none = await environment.verdict(ROW, "I do not know.")
    keys = ("reward", "success", "strict_score", "lenient_score", "extracted_answer", "extraction_method", "reason")
    assert [right[key] for key in keys] == [1.0, True, 1.0, 1.0, "18", "boxed", "the same text"]
    assert [lenient[key] for key in keys] == [1.0, True, 0.0, 1.0, "18", "answer_is", "the same text"]
    assert [wrong[key] for key in keys] == [0.0, False, 0.0, 0.0, "17", "boxed", "a different number"]
    assert [none[key] for key in keys] == [0.0, False, 0.0, 0.0, None, "none", "no answer found"]
    assert right["expected_answer"] == "18"


@pytest.mark.parametrize(
    "row", [{}, {"expected_answer": "many"}, {"answer": "no end"}, {**ROW, "form": "poem"}, {**ROW, "form": ["chat"]}]
)
async def test_a_row_without_a_number_or_with_an_unknown_form_is_refused(row: Json) -> None:
    async with in_process_server(server) as environment:
        assert (await environment.ask(row, "18")).status == 422


async def test_an_answer_that_needs_algebra_is_compared_with_it_unless_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row, text = rows_of(DATA / "gsm8k" / "test.jsonl")[0], r"\boxed{2 \cdot 3^2}"
    async with in_process_server(server) as environment:
        assert (await environment.verdict(row, text))["reward"] == 1.0
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(OperatorError, match="pip install"):
        async with in_process_server(server):
            pass
    async with in_process_server(server, equality="numbers") as environment:
        verdict = await environment.verdict(row, text)
        assert verdict["reward"] == 0.0 and "equality: numbers" in verdict["reason"]


async def test_the_example_rows_are_served() -> None:
    async with in_process_server(server) as environment:
        answer = await environment.stack.transport.send("GET", "http://environment:1/examples", b"", {}, deadline_s())
    rows = orjson.loads(answer.body)
    assert {row["form"] for row in rows} == set(ANSWER_FORMS)


def prepare_rows(tmp_path: Path, *options: str) -> list[Json]:
    local = DATA / "gsm8k" / "test.jsonl"
    main(["--local", str(local), "--limit", "2", "--output", str(tmp_path / "rows.jsonl"), *options])
    return rows_of(tmp_path / "rows.jsonl")


def test_the_chat_form_has_a_system_message_and_no_stops(tmp_path: Path) -> None:
    first, second = prepare_rows(tmp_path)
    assert (first["id"], second["id"], first["expected_answer"]) == ("gsm8k_0", "gsm8k_1", "18")
    system, user = first["responses_create_params"]["input"]
    assert (system["role"], user["content"]) == ("system", first["question"])
    assert r"\boxed{" in system["content"]
    assert "metadata" not in first["responses_create_params"]


def test_the_lm_eval_forms_have_its_prompts_shots_and_stop_strings(tmp_path: Path) -> None:
    train = str(DATA / "gsm8k" / "train_first1000.jsonl")
    plain = prepare_rows(tmp_path, "--form", "lm_eval")[0]
    shot = prepare_rows(tmp_path, "--form", "lm_eval", "--shots", "4", "--shots-from", train)[0]
    cot = prepare_rows(tmp_path, "--form", "lm_eval_cot")[0]
    (message,) = plain["responses_create_params"]["input"]
    assert message["content"] == f"Question: {plain['question']}\nAnswer:"
    extra = orjson.loads(plain["responses_create_params"]["metadata"]["extra_body"])
    assert extra == {"stop": ["Question:", "</s>", "<|im_end|>"]}
    assert shot["responses_create_params"]["input"][0]["content"].count("Question: ") == 5
    prompt = cot["responses_create_params"]["input"][0]["content"]
    assert prompt.startswith("Q: There are 15 trees")
    assert "must have been 21 - 15 = 6. The answer is 6.\n\nQ: If there are 3 cars" in prompt
    assert prompt.endswith(f"\n\nQ: {cot['question']}\nA:")
    assert prompt.count("Q: ") == 9


RIGHT, WRONG, EMPTY, UNCLOSED, NO_BOX = r"\boxed{18}", r"\boxed{17}", r"\boxed{}", r"\boxed{18", "The answer is 18."
TEXTS = (RIGHT, WRONG, EMPTY, UNCLOSED, NO_BOX)


async def verdicts(**settings: Any) -> list[Json]:
    async with in_process_server(server, **settings) as environment:
        return [await environment.verdict(ROW, text) for text in TEXTS]


async def test_the_rewards_of_ludic_are_a_setting_and_reported_by_their_parts() -> None:
    found = await verdicts(score="strict", format_reward=0.1, format_penalty=1.0)
    assert [one["reward"] for one in found] == [1.1, 0.1, -1.0, -1.0, -1.0]
    assert [one["parse_error"] for one in found] == [False, False, True, True, True]
    assert [one["success"] for one in found] == [True, False, False, False, False]
    assert found[0]["reward_components"] == {"correct": 1.0, "format": 0.1}
    assert found[4]["reward_components"] == {"correct": 0.0, "format": -1.0}


async def test_without_these_settings_the_reward_is_the_answers_alone_and_any_readable_answer_counts() -> None:
    found = await verdicts()
    assert [one["reward"] for one in found] == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert [one["parse_error"] for one in found] == [False, False, True, True, False]
    assert not any("reward_components" in one for one in found)
    weighted = await verdicts(score="strict", format_weight=0.1)
    assert [weighted[number]["reward"] for number in (0, 1, 4)] == [1.0, 0.1, 0.0]


def test_two_ways_to_reward_the_format_are_refused() -> None:
    with pytest.raises(OperatorError, match=r"format_weight.*format_reward|format_reward.*format_weight"):
        parse_settings(server.Settings, {"entrypoint": "app.py", "format_weight": 0.1, "format_reward": 0.1}, "gsm8k")
