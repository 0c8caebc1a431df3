"""The texts of a turn's tokens are recorded on request, next to the fields that trainers read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.token_history.token_texts import token_texts
from tests.support.token_clients import CALL_TURN, TEXT_TURN, open_episode, tool_output
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import decode


async def test_each_backend_records_the_text_of_every_generated_token() -> None:
    for backend in ["off", "generate", "completions"]:
        engine = TokenEngine([CALL_TURN, TEXT_TURN])
        async with open_episode(engine, token_in=backend, return_token_texts=True) as client:
            first = await client.ask()
            second = await client.ask(tool_output(first))
        for item, ids in ((first, CALL_TURN), (second, TEXT_TURN)):
            assert item["token_trace"]["texts"] == [decode([number]) for number in ids]


async def test_without_the_setting_no_texts_are_recorded() -> None:
    async with open_episode(TokenEngine([TEXT_TURN])) as client:
        assert "texts" not in (await client.ask())["token_trace"]


async def test_texts_do_not_reach_the_engine_with_the_next_turn() -> None:
    engine = TokenEngine([CALL_TURN, TEXT_TURN])
    async with open_episode(engine, token_in="off", return_token_texts=True) as client:
        await client.ask(tool_output(await client.ask()))
    assert "texts" not in str([body.get("messages") for _, body in engine.requests])
    assert client.responses[0]["output"][-1]["token_trace"]["texts"]


def entries(*tokens: tuple[str, bytes]) -> Json:
    return {"logprobs": {"content": [{"token": text, "bytes": list(raw)} for text, raw in tokens]}}


def test_a_character_in_several_tokens_is_the_text_of_the_last_one() -> None:
    raw = "🎉".encode()
    choice = entries(("a", b"a"), ("\ufffd", raw[:2]), ("\ufffd", raw[2:3]), ("\ufffd", raw[3:]), ("b", b"b"))
    assert token_texts(choice, 5) == ["a", "", "", "🎉", "b"]


def test_texts_remain_if_the_bytes_are_those_of_the_replacement_character() -> None:
    choice = entries(("a", b"a"), ("\ufffd", "\ufffd".encode()))
    assert token_texts(choice, 2) == ["a", "\ufffd"]


def test_ids_in_place_of_texts_and_missing_texts_are_not_recorded() -> None:
    assert token_texts(entries(("token_id:5", b""), ("a", b"a")), 2) == []
    assert token_texts(entries(("a", b"a")), 2) == []
    assert token_texts({"logprobs": None}, 0) == []


def test_texts_without_recorded_tokens_are_refused() -> None:
    with pytest.raises(ValidationError, match="return_token_texts is set without return_token_id_information"):
        ChatEngineSettings(model="tiny", return_token_texts=True)
