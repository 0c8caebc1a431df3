"""An engine that lacks endpoints for token ids, as older vLLM and other servers do, answers every turn all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollyard.services.types import Json
from tests.support.token_clients import CALL_TURN, TEXT_TURN, open_episode, tool_output, user_message
from tests.support.token_engine import Refused, TokenEngine


class Lacking(TokenEngine):
    """Answers 404 at these paths."""

    lacks: tuple[str, ...] = ()

    def _answers(self, path: str) -> Callable[[Json], Json]:
        if path.endswith(self.lacks):
            raise Refused("Not Found", 404)
        return super()._answers(path)


def lacking(*paths: str, script: Any = (CALL_TURN, TEXT_TURN)) -> Lacking:
    engine = Lacking([*script])
    engine.lacks = paths
    return engine


SCALE_OUT = ("/render", "/inference/v1/generate", "/derender")
OTHERS: list[tuple[tuple[str, ...], str]] = [
    *[((path,), "completions") for path in SCALE_OUT],
    ((*SCALE_OUT, "/tokenize"), "chat"),
    ((*SCALE_OUT, "/tokenize", "/v1/completions"), "chat"),
]


@pytest.mark.parametrize(("paths", "way"), OTHERS)
async def test_an_engine_that_lacks_endpoints_gets_its_turns_another_way(paths: tuple[str, ...], way: str) -> None:
    async with open_episode(lacking(*paths)) as player:
        one = await player.ask()
        two = await player.ask(tool_output(one))
        three = await player.ask(user_message("on"))
    traces = [item["token_trace"] for item in (one, two, three)]
    assert [trace["way"] for trace in traces] == ["chat", way, way]
    assert {trace["sampling"]["version_of"] for trace in traces} == {"turn"}


@pytest.mark.parametrize("path", SCALE_OUT)
async def test_a_way_that_the_settings_demand_and_the_engine_lacks_is_refused_by_name(path: str) -> None:
    async with open_episode(lacking(path), token_in="generate") as player:
        status, problem = await player.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert "start vLLM with --enable-scale-out" in problem["detail"]
