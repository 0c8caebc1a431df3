"""ng_doctor tokens: its report on engines whose conversations stay contiguous, and on others."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.services.types import Json
from tests.support.commands import Finished, command, config, ng_run
from tests.support.scripted_engine import listening
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, ChatTemplate, encode, encode_letters

MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
AS_TOKENIZED = [*encode("the box"), END]
LETTER_BY_LETTER = [*encode_letters("the box"), END]
"""Ids that no tokenizer produces for this text."""


def variables(url: str) -> dict[str, str]:
    return {"policy_base_url": f"{url}/v1", "policy_api_key": "dummy", "policy_model_name": "tiny"}


async def diagnose(engine: TokenEngine, folder: Path, *options: str) -> Finished:
    """`ng_doctor tokens` with this engine."""
    async with listening(engine) as url:
        return await command("ng_doctor", "tokens", config(MODEL), *options, cwd=folder, env=variables(url))


def case(report: Json, name: str) -> Json:
    (entry,) = (case for case in report["template"] if case["case"] == name)
    return dict(entry)


async def test_the_report_shows_that_messages_break_and_token_ids_do_not(tmp_path: Path) -> None:
    done = await diagnose(TokenEngine([LETTER_BY_LETTER]), tmp_path, "+samples=2")
    assert done.status == 0, done.err
    assert "token ids are sent by 'generate'" in done.out
    assert "2 of 2 are not contiguous" in done.out
    assert "Multi-turn is contiguous: later turns are sent as token ids" in done.out


async def test_turns_that_are_tokenized_as_they_were_generated_do_not_break(tmp_path: Path) -> None:
    done = await diagnose(TokenEngine([AS_TOKENIZED]), tmp_path, "+samples=2", "+json=true")
    report = orjson.loads(done.out)
    assert report["sampled"] == {"turns": 2, "broken": 0, "first": None}


async def test_a_template_that_drops_reasoning_is_reported_with_the_first_difference(tmp_path: Path) -> None:
    done = await diagnose(TokenEngine([AS_TOKENIZED]), tmp_path, "+samples=0", "+json=true")
    entry = case(orjson.loads(done.out), "reasoning and text, then a question")
    assert "<think>" in entry["retokenized"]["expected"]
    assert "<think>" not in entry["retokenized"]["found"]
    assert entry["token_in"] is None


async def test_the_tool_parser_is_checked_against_the_output_of_the_template(tmp_path: Path) -> None:
    done = await diagnose(TokenEngine([AS_TOKENIZED]), tmp_path, "+samples=0", "+json=true")
    assert case(orjson.loads(done.out), "two tool calls")["parser"] == "ok"


async def test_a_template_without_an_end_of_turn_fails_the_check(tmp_path: Path) -> None:
    done = await diagnose(TokenEngine([LETTER_BY_LETTER], template=ChatTemplate(end="")), tmp_path, "+samples=1")
    assert done.status == 1
    assert "Multi-turn is NOT contiguous here" in done.out


async def test_a_running_stack_is_checked_from_its_folder(tmp_path: Path) -> None:
    async with (
        listening(TokenEngine([AS_TOKENIZED])) as url,
        ng_run(config(MODEL), "+head_port=0", cwd=tmp_path, env=variables(url)),
    ):
        done = await command("ng_doctor", "tokens", "+samples=1", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "model tiny" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["token"], "unknown check 'token'"),
        (["tokens", "+sample=3"], "did you mean 'samples'?"),
        (["tokens", config(MODEL)], "which is not set"),
    ],
    ids=["check", "option", "variable"],
)
async def test_a_typing_mistake_is_named(tmp_path: Path, words: list[str], message: str) -> None:
    done = await command("ng_doctor", *words, cwd=tmp_path)
    assert done.status == 2
    assert message in done.err


async def test_an_unreachable_endpoint_is_reported_in_one_line(tmp_path: Path) -> None:
    done = await command("ng_doctor", "tokens", config(MODEL), cwd=tmp_path, env=variables("http://127.0.0.1:9"))
    assert done.status == 1
    assert "no connection to http://127.0.0.1:9" in done.err
    assert "Traceback" not in done.err
