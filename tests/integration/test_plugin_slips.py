"""What an agent or a model server returns by mistake is named in the failure."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard import Agent, AgentSettings, Environment, Episode, ModelServer, ServerSettings, Verdict, Verification
from rollyard.records.errors import Failure, FailureKind
from rollyard.testing import in_process_server, play


class Hello(Environment[Any]):
    """Must not be asked for a verdict if the agent returned no finish reason."""

    user_template = "Hello."

    async def verify(self, response: Verification) -> Verdict:
        raise AssertionError("verify was called")


@pytest.mark.parametrize("returned", [None, "answered"])
async def test_an_agent_that_returns_no_finish_reason_is_named_before_the_verdict(returned: Any) -> None:
    class Slip(Agent[AgentSettings]):
        async def play(self, episode: Episode) -> Any:
            await episode.ask()
            return returned

    with pytest.raises(Failure, match=r"play returned .*FinishReason"):
        await play(Hello, {}, ["Hi."], agent=Slip)


@pytest.mark.parametrize("returned", [None, "text", 1])
async def test_a_model_server_that_returns_no_response_is_named_and_not_a_broken_connection(returned: Any) -> None:
    class Slip(ModelServer[ServerSettings]):
        async def responses(self, request: Any, call: Any) -> Any:
            return returned

    requests = {
        "/v1/responses": b'{"input": "Hello."}',
        "/v1/chat/completions": b'{"messages": [{"role": "user", "content": "Hello."}]}',
    }
    async with in_process_server(Slip) as servers:
        for path, request in requests.items():
            with pytest.raises(Failure, match="model server returned") as raised:
                await servers.client.post("server", path, request, 10.0)
            assert raised.value.kind is FailureKind.SERVER_ERROR


async def test_a_model_server_without_responses_is_named() -> None:
    class Empty(ModelServer[ServerSettings]):
        pass

    async with in_process_server(Empty) as servers:
        with pytest.raises(Failure, match=r"Empty .*responses"):
            await servers.client.post("server", "/v1/responses", b'{"input": "Hello."}', 10.0)
