"""A limit that leaves no token is the caller's mistake; vLLM refuses it with the message for overlong prompts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModelSettings
from tests.support.token_clients import TEXT_TURN, open_episode
from tests.support.token_engine import TokenEngine
from tests.unit.responses_api_models.chat_engine.test_overflow import PATHS

LIMITS = {
    "/v1/responses": ["max_output_tokens", "max_tokens"],
    "/v1/chat/completions": ["max_tokens", "max_completion_tokens"],
}


@pytest.mark.parametrize(("path", "name"), [(path, name) for path in PATHS for name in LIMITS[path]])
async def test_a_limit_that_leaves_no_token_is_a_bad_request_and_not_an_overflow(path: str, name: str) -> None:
    request: Json = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    values: list[Any] = [0, -1, -0.5, False]
    for records in (True, False):
        async with open_episode(TokenEngine([TEXT_TURN]), return_token_id_information=records) as client:
            for value, stream in itertools.product(values, (False, True)):
                status, problem = await client.send(path, {**request, "stream": stream, name: value})
                assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")
                assert problem["detail"].startswith(f"{name}: found {value}")
        assert not client.engine.requests


async def test_a_limit_that_leaves_no_token_is_also_refused_in_settings_and_row_metadata() -> None:
    for settings, params in [
        ({"extra_body": {"max_tokens": 0}}, {}),
        ({"sampling_overrides": {"max_completion_tokens": 0}}, {}),
        ({}, {"metadata": {"extra_body": '{"max_tokens": 0}'}}),
    ]:
        async with open_episode(TokenEngine([TEXT_TURN]), **settings) as client:
            status, problem = await client.send("/v1/responses", {"input": "hi", **params})
        assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")


@pytest.mark.parametrize("setting", ["extra_body", "sampling_overrides"])
def test_whole_numbers_in_settings_are_integers_and_others_are_refused(setting: str) -> None:
    base: Json = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    found = VllmModelSettings(**base, **{setting: {"top_k": 1e1, "temperature": 1.0, "seed": None}})
    assert repr(getattr(found, setting)["top_k"]) == "10"
    with pytest.raises(OperatorError, match=rf"{setting}\.top_k is 1\.5; expected an integer"):
        VllmModelSettings(**base, **{setting: {"top_k": 1.5}})
