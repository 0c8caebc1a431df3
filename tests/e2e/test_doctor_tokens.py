"""ng_doctor tokens: what it says of engines that keep conversations together, and of those that do not."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.services.types import Json
from tests.support.commands import Finished, command, config, ng_run
from tests.support.scripted_engine import listening
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, ChatTemplate, encode, spelled

MODEL = "responses_api_models/vllm_model/configs/vllm_model.yaml"
AS_READ = [*encode("the box"), END]
SPELLED = [*spelled("the box"), END]
"""What no tokenizer makes of the text."""


def exported(url: str) -> dict[str, str]:
    return {"policy_base_url": f"{url}/v1", "policy_api_key": "dummy", "policy_model_name": "tiny"}


async def checked(engine: TokenEngine, folder: Path, *options: str) -> Finished:
    """The command before this engine."""
    async with listening(engine) as url:
        return await command("ng_doctor", "tokens", config(MODEL), *options, cwd=folder, env=exported(url))


def case(report: Json, name: str) -> Json:
    (found,) = (case for case in report["template"] if case["case"] == name)
    return dict(found)


async def test_it_shows_where_messages_break_and_that_token_ids_do_not(tmp_path: Path) -> None:
    done = await checked(TokenEngine([SPELLED]), tmp_path, "+samples=2")
    assert done.status == 0, done.err
    assert "token ids go in by 'generate'" in done.out
    assert "2 of 2 break" in done.out
    assert "Multi-turn is contiguous: later turns are sent as token ids" in done.out


async def test_turns_that_read_as_they_were_generated_do_not_break(tmp_path: Path) -> None:
    done = await checked(TokenEngine([AS_READ]), tmp_path, "+samples=2", "+json=true")
    report = orjson.loads(done.out)
    assert report["sampled"] == {"turns": 2, "broken": 0, "first": None}


async def test_a_template_that_drops_reasoning_is_found_with_the_first_difference(tmp_path: Path) -> None:
    done = await checked(TokenEngine([AS_READ]), tmp_path, "+samples=0", "+json=true")
    found = case(orjson.loads(done.out), "reasoning and text, then a question")
    assert "<think>" in found["retokenized"]["expected"]
    assert "<think>" not in found["retokenized"]["found"]
    assert found["token_in"] is None


async def test_the_tool_parser_is_held_to_what_the_template_writes(tmp_path: Path) -> None:
    done = await checked(TokenEngine([AS_READ]), tmp_path, "+samples=0", "+json=true")
    assert case(orjson.loads(done.out), "two tool calls")["parser"] == "ok"


async def test_a_template_without_an_end_of_turn_fails_the_check(tmp_path: Path) -> None:
    done = await checked(TokenEngine([SPELLED], template=ChatTemplate(end="")), tmp_path, "+samples=1")
    assert done.status == 1
    assert "Multi-turn is NOT contiguous here" in done.out


async def test_a_running_stack_is_asked_from_its_folder(tmp_path: Path) -> None:
    async with (
        listening(TokenEngine([AS_READ])) as url,
        ng_run(config(MODEL), "+head_port=0", cwd=tmp_path, env=exported(url)),
    ):
        done = await command("ng_doctor", "tokens", "+samples=1", cwd=tmp_path)
    assert done.status == 0, done.err
    assert "model tiny" in done.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["token"], "unknown check 'token'"),
        (["tokens", "+sample=3"], "did you mean 'samples'?"),
        (["tokens", config(MODEL)], "which is set nowhere"),
    ],
    ids=["check", "option", "variable"],
)
async def test_what_was_mistyped_is_named(tmp_path: Path, words: list[str], told: str) -> None:
    done = await command("ng_doctor", *words, cwd=tmp_path)
    assert done.status == 2
    assert told in done.err


async def test_an_endpoint_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = await command("ng_doctor", "tokens", config(MODEL), cwd=tmp_path, env=exported("http://127.0.0.1:9"))
    assert done.status == 1
    assert "no connection to http://127.0.0.1:9" in done.err
    assert "Traceback" not in done.err
