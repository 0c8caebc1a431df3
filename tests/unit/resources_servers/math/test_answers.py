"""MATH's answers: gold answers, model answers, and wrong answers derived from gold ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.answers.grader import AnswerGrader, Grade
from rollyard.resources_servers.math.app import ANSWER_FORMS, gold_answer, same_string, server
from rollyard.resources_servers.math.prepare import main
from tests.support.waiting import deadline_s
from tests.unit.resources_servers.answers.grading import (
    DATA,
    EnvironmentClient,
    grade_all,
    in_process_server,
    rows_of,
    verification_of,
)
from tests.unit.resources_servers.math.mutants import mutants

MATH500 = DATA / "math" / "math500.jsonl"


def golds() -> list[str]:
    return [row["answer"] for row in rows_of(MATH500)]


@pytest.mark.parametrize(
    ("form", "wording", "strict"),
    [
        ("chat", r"Thus it is \boxed{%s}.", 500),
        ("lm_eval_hendrycks", "Thus it is $%s$.", 500),
        ("lm_eval_hendrycks", r"\boxed{%s}", 0),  # as in lm_eval
        ("lm_eval_minerva", "Thus.\nFinal Answer: The final answer is $%s$. I hope it is correct.", 500),
        *(("chat", wording, None) for wording in ("%s", "The answer is $%s$.", r"**Answer:** \(%s\)", "It is $%s$.")),
    ],
)
async def test_every_gold_answer_is_right_in_any_form_and_strictly_only_in_the_requested_one(
    form: str, wording: str, strict: int | None
) -> None:
    pairs = [(gold, wording.replace("%s", gold)) for gold in golds()]
    grades = await grade_all(AnswerGrader(None), ANSWER_FORMS[form], pairs)
    assert sum(grade.lenient for grade in grades) == 500
    assert strict is None or sum(grade.strict for grade in grades) == strict


async def test_every_complete_gold_solution_is_right(grader: AnswerGrader) -> None:
    pairs = [(row["answer"], row["solution"]) for row in rows_of(MATH500)]
    grades = await grade_all(grader, ANSWER_FORMS["chat"], pairs)
    assert sum(grade.strict and grade.lenient for grade in grades) == 500


async def test_wrong_answers_derived_from_gold_ones_are_rejected(grader: AnswerGrader) -> None:
    def pairs(step: int) -> list[tuple[str, str]]:
        return [(gold, answer) for gold in golds()[::step] for _, answer in mutants(gold)]

    assert await accepted(AnswerGrader(None), pairs(3)) == []  # algebra would take seconds
    assert await accepted(grader, pairs(40)) == []


async def boxed_grades(grader: AnswerGrader, pairs: list[tuple[str, str]]) -> list[Grade]:
    """The grades of (gold answer, boxed answer), requested concurrently."""
    return await asyncio.gather(
        *(grader.grade(gold, verification_of(rf"\boxed{{{answer}}}"), ANSWER_FORMS["chat"]) for gold, answer in pairs)
    )


async def accepted(grader: AnswerGrader, pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    grades = await boxed_grades(grader, pairs)
    return [pair for pair, grade in zip(pairs, grades, strict=True) if grade.strict or grade.lenient]


ROW: Json = {"problem": "Halve one.", "expected_answer": r"\frac{1}{2}"}


@pytest.fixture(scope="module")
async def environment() -> AsyncIterator[EnvironmentClient]:
    """A server that takes at most 0.3 s of CPU time for a comparison."""
    async with in_process_server(server, verify_cpu_s=0.3) as client:
        yield client


async def test_a_verdict_reports_the_extracted_answer_its_method_and_the_reason(environment: EnvironmentClient) -> None:
    keys = ("reward", "strict_score", "lenient_score", "extracted_answer", "extraction_method")
    right = await environment.verdict(ROW, r"<think>\boxed{2}</think> \boxed{1 - \frac12}")
    lenient = await environment.verdict(ROW, "The answer is $0.5$.")
    wrong = await environment.verdict(ROW, r"\boxed{x}")
    assert [right[key] for key in keys] == [1.0, 1.0, 1.0, r"1 - \frac12", "boxed"]
    assert [lenient[key] for key in keys] == [1.0, 0.0, 1.0, "0.5", "answer_is"]
    assert [wrong[key] for key in keys] == [0.0, 0.0, 0.0, "x", "boxed"]
    assert right["reason"] == "equal" and "number" in lenient["reason"] and "variable x" in wrong["reason"]


async def test_an_answer_that_is_too_expensive_is_wrong_and_a_gold_answer_that_is_too_expensive_a_failure(
    environment: EnvironmentClient,
) -> None:
    for row, text in ((ROW, r"\boxed{9^{9^{9^9}}}"), ({"expected_answer": "3!"}, r"\boxed{99999999!+y}")):
        assert (await environment.verdict(row, text))["reward"] == 0.0
    assert (await environment.verdict(ROW, r"\boxed{0.5}"))["reward"] == 1.0
    answer = await environment.ask({"expected_answer": "99999999!+y"}, r"\boxed{3!}")
    problem = orjson.loads(answer.body)
    assert (answer.status, problem["type"], "reward" in problem) == (504, "urn:rollyard:timeout", False)


async def test_the_rows_problem_determines_the_requested_quantity(environment: EnvironmentClient) -> None:
    in_problem = {"problem": "Find $x^2$ if $x = 3$.", "expected_answer": "9"}
    prompt = [{"role": "user", "content": "Find $x^2$."}]
    in_prompt = {"expected_answer": "9", "responses_create_params": {"input": prompt}}
    rewards = [(await environment.verdict(row, r"\boxed{x^2 = 9}"))["reward"] for row in (in_problem, in_prompt, ROW)]
    assert rewards == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    "row", [{}, {"solution": "no box"}, {"answer": ""}, {**ROW, "form": "poem"}, {**ROW, "form": ["chat"]}]
)
async def test_a_row_without_a_gold_answer_or_with_an_unknown_form_is_refused(
    row: Json, environment: EnvironmentClient
) -> None:
    assert (await environment.ask(row, "18")).status == 422


def test_a_gold_answer_is_read_from_a_solution_under_any_key() -> None:
    solution = r"So $x = \boxed{\frac{1}{2}}$."
    for row in ({"solution": solution}, {"answer": solution}, {"expected_answer": r"\frac{1}{2}"}):
        assert gold_answer(row) == r"\frac{1}{2}"
    assert gold_answer({"answer": 5}) == "5"


EQUAL = [
    *((r"\dfrac{1}{2}", r"\frac12"), ("0.5", r"\frac{1}{2}"), ("1/2", r"\frac{1}{2}"), ("x = 5", "5"), (".5", "0.5")),
    *((r"\sqrt2", r"\sqrt{2}"), (r"5\text{ cm}", "5"), (r"\left(1, 2\right)", "(1,2)"), (r"90^\circ", "90")),
    (r"5\text{ or }6\text{ cm}", r"5\text{ or }6\text{ cm}"),  # if the original raises, it compares the unchanged texts
]
UNEQUAL = [("2", "3"), ("x+1", "1+x"), ("5", r"5\text{ or }6\text{ cm}"), (r"3\dfrac", r"3\frac")]


def test_the_datasets_own_equality_compares_notations() -> None:
    assert [pair for pair in EQUAL if not same_string(*pair)] == [pair for pair in UNEQUAL if same_string(*pair)] == []


async def test_the_example_rows_are_served(environment: EnvironmentClient) -> None:
    answer = await environment.stack.transport.send("GET", "http://environment:1/examples", b"", {}, deadline_s())
    assert {row["form"] for row in orjson.loads(answer.body)} == set(ANSWER_FORMS)


def prepare_rows(tmp_path: Path, *options: str) -> list[Json]:
    local = DATA / "math" / "math500.jsonl"
    main(["--local", str(local), "--output", str(tmp_path / "rows.jsonl"), *options])
    return rows_of(tmp_path / "rows.jsonl")


def test_rows_are_numbered_within_their_subject_whatever_is_filtered(tmp_path: Path) -> None:
    all_rows = {row["id"]: row for row in prepare_rows(tmp_path)}
    hard = prepare_rows(tmp_path, "--levels", "5")
    assert len(all_rows) == 500
    assert {row["level"] for row in hard} == {5}
    assert all(all_rows[row["id"]] == row for row in hard)


def test_the_lm_eval_forms_have_its_prompts_shots_and_stop_strings(tmp_path: Path) -> None:
    minerva = prepare_rows(tmp_path, "--form", "lm_eval_minerva", "--limit", "1")[0]
    hendrycks = prepare_rows(tmp_path, "--form", "lm_eval_hendrycks", "--limit", "1")[0]
    prompt = minerva["responses_create_params"]["input"][0]["content"]
    assert prompt.startswith("Problem:\nFind the domain of the expression")
    assert prompt.count("\n\nSolution:") == 5
    assert prompt.endswith(f"Problem:\n{minerva['problem']}\n\nSolution:")
    assert hendrycks["responses_create_params"]["input"][0]["content"] == f"Problem: {hendrycks['problem']}\nAnswer:"
    for row in (minerva, hendrycks):
        assert orjson.loads(row["responses_create_params"]["metadata"]["extra_body"]) == {"stop": ["Problem:"]}


def test_missing_examples_are_reported_with_their_subject(tmp_path: Path) -> None:
    pool = tmp_path / "pool.jsonl"
    drawn = ("--form", "lm_eval_hendrycks", "--shots", "1", "--shots-from", str(pool))
    for text, named in (
        ("", "Precalculus"),
        ('{"problem": "x", "solution": "no box", "type": "Algebra"}', r"\boxed{}"),
        ('{"question": "x"}', "problem and solution"),
    ):
        pool.write_text(text)
        with pytest.raises(OperatorError) as stopped:
            prepare_rows(tmp_path, *drawn)
        assert named in str(stopped.value)


def test_the_hendrycks_forms_examples_are_drawn_for_each_row_from_its_subject(tmp_path: Path) -> None:
    source = DATA / "math" / "math500.jsonl"
    answers = {f"Problem: {row['problem']}\nAnswer: {row['answer']}\n\n": row["subject"] for row in rows_of(source)}
    drawn = ("--form", "lm_eval_hendrycks", "--shots", "2", "--shots-from", str(source))
    drawn_shots = set[tuple[str, ...]]()
    for row in prepare_rows(tmp_path, *drawn, "--levels", "1"):
        prompt = row["responses_create_params"]["input"][0]["content"]
        shots = tuple(shot for shot in answers if shot in prompt)
        assert len(prompt) == sum(map(len, [*shots, f"Problem: {row['problem']}\nAnswer:"])) and len(shots) == 2
        assert {answers[shot] for shot in shots} == {row["subject"]}
        drawn_shots.add(shots)
    assert len(drawn_shots) > 30
