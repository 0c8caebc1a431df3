"""A limit that leaves no token is the caller's mistake: vLLM refuses it in its words for a prompt that is too long."""

from __future__ import annotations

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


@pytest.mark.parametrize("value", [0, -1, -0.5, False], ids=str)
@pytest.mark.parametrize(("path", "name"), [(path, name) for path in PATHS for name in LIMITS[path]])
@pytest.mark.parametrize("records", [True, False])
async def test_a_limit_that_leaves_no_token_is_the_callers_mistake_and_no_overflow(
    path: str, name: str, value: Any, records: bool
) -> None:
    request: Json = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    async with open_episode(TokenEngine([TEXT_TURN]), return_token_id_information=records) as player:
        for more in ({}, {"stream": True}):
            status, problem = await player.send(path, {**request, **more, name: value})
            assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")
            assert problem["detail"].startswith(f"{name}: found {value}")
    assert not player.engine.requests


@pytest.mark.parametrize(
    ("settings", "params"),
    [
        ({"extra_body": {"max_tokens": 0}}, {}),
        ({"sampling_overrides": {"max_completion_tokens": 0}}, {}),
        ({}, {"metadata": {"extra_body": '{"max_tokens": 0}'}}),
    ],
)
async def test_such_a_limit_of_the_settings_or_of_a_rows_metadata_is_refused_too(settings: Json, params: Json) -> None:
    async with open_episode(TokenEngine([TEXT_TURN]), **settings) as player:
        status, problem = await player.send("/v1/responses", {"input": "hi", **params})
    assert (status, problem["type"]) == (400, "urn:rollyard:bad_request")
