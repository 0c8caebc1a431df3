"""ng_doctor tokens: its report on engines whose conversations stay contiguous, and on others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from rollyard.records.types import Json
from tests.support.commands import Finished, config, in_thread, running_stack
from tests.support.scripted_engine import listening
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, ChatTemplate, encode, encode_letters

MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
AS_TOKENIZED = [*encode("the box"), END]
LETTER_BY_LETTER = [*encode_letters("the box"), END]
"""Ids that no tokenizer produces for this text."""
Diagnose = Callable[..., Awaitable[Finished]]


def variables(url: str) -> dict[str, str]:
    return {"policy_base_url": f"{url}/v1", "policy_api_key": "dummy", "policy_model_name": "tiny"}


@pytest.fixture
def diagnose(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Diagnose:
    """`ng_doctor tokens` with an engine."""

    async def run(engine: TokenEngine, *options: str) -> Finished:
        async with listening(engine) as url:
            for name, value in variables(url).items():
                monkeypatch.setenv(name, value)
            return await in_thread("ng_doctor", "tokens", *options, capsys=capsys)

    return run


def case(report: Json, name: str) -> Json:
    (entry,) = (case for case in report["template"] if case["case"] == name)
    return dict(entry)


async def test_the_report_shows_that_messages_break_and_token_ids_do_not(diagnose: Diagnose) -> None:
    done = await diagnose(TokenEngine([LETTER_BY_LETTER]), config(MODEL), "+samples=2")
    assert done.status == 0, done.err
    for shown in ("'generate'", "2 of 2 are not contiguous", "Multi-turn is contiguous"):
        assert shown in done.out


async def test_turns_that_are_tokenized_as_they_were_generated_do_not_break(diagnose: Diagnose) -> None:
    done = await diagnose(TokenEngine([AS_TOKENIZED]), config(MODEL), "+samples=2", "+json=true")
    report = orjson.loads(done.out)
    assert report["sampled"] == {"turns": 2, "broken": 0, "first": None}


async def test_the_template_is_checked_for_reasoning_that_it_drops_and_against_the_tool_parser(
    diagnose: Diagnose,
) -> None:
    done = await diagnose(TokenEngine([AS_TOKENIZED]), config(MODEL), "+samples=0", "+json=true")
    entry = case(orjson.loads(done.out), "reasoning and text, then a question")
    assert "<think>" in entry["retokenized"]["expected"]
    assert "<think>" not in entry["retokenized"]["found"]
    assert entry["token_in"] is None
    assert case(orjson.loads(done.out), "two tool calls")["parser"] == "ok"


async def test_a_template_without_an_end_of_turn_fails_the_check(diagnose: Diagnose) -> None:
    engine = TokenEngine([LETTER_BY_LETTER], template=ChatTemplate(end=""))
    done = await diagnose(engine, config(MODEL), "+samples=1")
    assert (done.status, "NOT contiguous" in done.out) == (1, True), done.out


async def test_a_running_stack_is_checked_from_its_folder(tmp_path: Path, diagnose: Diagnose) -> None:
    async with listening(TokenEngine([AS_TOKENIZED])) as url:
        given = [f"{name}={value}" for name, value in variables(url).items()]
        with running_stack(*given, configs=MODEL, folder=tmp_path):
            done = await diagnose(TokenEngine([]), "+samples=1")
    assert done.status == 0, done.err
    assert "model tiny" in done.out
