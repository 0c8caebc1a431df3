"""GSM8K as a server, and its task rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS, server
from rollyard.resources_servers.gsm8k.prepare import main
from rollyard.services.server.settings import parse_settings
from tests.support.waiting import deadline_s
from tests.unit.resources_servers.answers.grading import DATA, in_process_server, rows_of

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


@pytest.mark.parametrize("row", [{}, {"expected_answer": "many"}, {"answer": "no end"}, {**ROW, "form": "poem"}])
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
