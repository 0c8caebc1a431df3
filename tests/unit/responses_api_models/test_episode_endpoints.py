"""An episode's own model endpoint (`policy_base_url` in the body of /run), through a model server without a network."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure
from rollyard.records.types import Json
from tests.support.foreign_servers import TOKEN_KEYS, foreign_environment
from tests.support.in_process import Script, says
from tests.support.scripted_engine import completion

BASE, KEY = "http://trainer:30000", "sk-secret-of-the-trainer"
ROW: Json = {"responses_create_params": {"input": "Go."}}
RESPONSE: Json = {"id": "r", "object": "response", "status": "completed", "output": [says(f"The key is {KEY}.")]}


def app_of(answers: dict[str, Any], asked: list[str]) -> Any:
    """An HTTP app that answers the paths that it has, and returns 404 for others."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received = (await receive())["body"]
        asked.append(scope["path"])
        answer = answers.get(scope["path"])
        body = orjson.dumps({**orjson.loads(received or b"{}"), "reward": 1.0} if answer == "echo" else answer)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200 if answer is not None else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.parametrize(
    ("path", "answer", "paths"),
    [
        ("/v1/chat/completions", completion({"content": f"The key is {KEY}."}), ["chat/completions"] * 2),
        ("/v1/responses", RESPONSE, ["chat/completions", "responses", "responses"]),
    ],
)
async def test_it_is_called_with_the_api_that_it_has_and_its_key_is_not_recorded(
    path: str, answer: Json, paths: list[str]
) -> None:
    asked: list[str] = []
    environment = app_of({"/seed_session": {}, "/verify": "echo"}, [])
    settings: Json = {"keys": TOKEN_KEYS, "policy_base_url_allowlist": [BASE]}
    others = {BASE: app_of({path: answer}, asked)}
    policy = {"policy_base_url": f"{BASE}/v1", "policy_api_key": KEY}
    async with foreign_environment(environment, Script([[says("x")]]), SimpleAgent, others=others, **settings) as stack:
        rollouts = [await stack.run({**ROW, **policy}) for _ in range(2)]
        for invalid in ({**policy, "policy_base_url": "http://other/v1"}, {"policy_api_key": KEY}):
            with pytest.raises(Failure, match="policy_base_url") as caught:
                await stack.run({**ROW, **invalid})
            assert caught.value.terminal
    assert asked == [f"/v1/{path}" for path in paths]
    for rollout in rollouts:
        (text,) = rollout["response"]["output"][0]["content"]
        assert text["text"].startswith("The key is ") and KEY.encode() not in orjson.dumps(rollout)
