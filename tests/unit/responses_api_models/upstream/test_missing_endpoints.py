"""An engine without token-in endpoints, such as an older vLLM or another server, still answers every turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollyard.records.types import Json
from tests.support.token_clients import CALL_TURN, TEXT_TURN, open_episode, tool_output, user_message
from tests.support.token_engine import Refused, TokenEngine


class WithoutEndpoints(TokenEngine):
    """Answers 404 at these paths."""

    missing: tuple[str, ...] = ()

    def _answers(self, path: str) -> Callable[[Json], Json]:
        if path.endswith(self.missing):
            raise Refused("Not Found", 404)
        return super()._answers(path)


def engine_without(*paths: str, script: Any = (CALL_TURN, TEXT_TURN)) -> WithoutEndpoints:
    engine = WithoutEndpoints([*script])
    engine.missing = paths
    return engine


TOKEN_ENDPOINTS = ("/render", "/inference/v1/generate", "/derender")
FALLBACKS: list[tuple[tuple[str, ...], str]] = [
    *[((path,), "completions") for path in TOKEN_ENDPOINTS],
    ((*TOKEN_ENDPOINTS, "/tokenize"), "chat"),
    ((*TOKEN_ENDPOINTS, "/tokenize", "/v1/completions"), "chat"),
]


@pytest.mark.parametrize(("paths", "backend"), FALLBACKS)
async def test_an_engine_without_some_endpoints_gets_its_turns_through_another_backend(
    paths: tuple[str, ...], backend: str
) -> None:
    async with open_episode(engine_without(*paths)) as client:
        one = await client.ask()
        two = await client.ask(tool_output(one))
        three = await client.ask(user_message("on"))
    traces = [item["token_trace"] for item in (one, two, three)]
    assert [trace["way"] for trace in traces] == ["chat", backend, backend]
    assert {trace["sampling"]["version_of"] for trace in traces} == {"turn"}


@pytest.mark.parametrize("path", TOKEN_ENDPOINTS)
async def test_a_required_backend_that_the_engine_lacks_is_refused_by_name(path: str) -> None:
    async with open_episode(engine_without(path), token_in="generate") as client:
        status, problem = await client.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert "start vLLM with --enable-scale-out" in problem["detail"]
