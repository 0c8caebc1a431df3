"""A limit that leaves no token is the caller's mistake; vLLM refuses it with the message for overlong prompts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from rollyard.services.types import Json
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
