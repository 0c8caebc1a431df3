"""Whoever speaks with a model server that records tokens: an agent over Responses, a client over Chat Completions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from rollyard.agents.conversation import Conversation
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.transport import HttpResponse, HttpTransport, LocalTransport
from rollyard.services.rollout_types import Response, ResponseItem
from rollyard.services.run_types import Directory, Keys
from rollyard.services.server.app import Context, Server
from rollyard.services.types import Json
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode, spelled

TOOL: Json = {
    "type": "function",
    "name": "push",
    "parameters": {"type": "object", "properties": {"actions": {"type": "array", "items": {"type": "string"}}}},
}
CALL = [*spelled('<tool_call>\n{"name": "push", "arguments": {"actions": ["up"]}}\n</tool_call>'), END]
"""A call of the tool, letter by letter: no tokenizer writes it so."""
WORDS = [*spelled("the box"), END]


@dataclass
class Player:
    """An episode; each answer of the model comes as its last item, which holds the tokens."""

    engine: TokenEngine
    server: Server
    conversation: Conversation
    transport: LocalTransport
    responses: list[Json] = field(default_factory=list)

    async def ask(self, *new: ResponseItem, headers: Json | None = None) -> Json:
        """What the model says after these items."""
        for item in new:
            self.conversation.answer(item)
        status, response = await self.send("/v1/responses", orjson.loads(self.conversation.request()), headers)
        assert status == 200, response
        self.conversation.add(cast(Response, response))
        self.responses.append(response)
        last: Json = response["output"][-1]
        return last

    async def send(self, path: str, body: Json, headers: Json | None = None) -> tuple[int, Json]:
        """Any request to the model server: status and body of the answer."""
        answer = await self.answer(path, body, headers)
        return answer.status, orjson.loads(answer.body)

    async def answer(self, path: str, body: Json, headers: Json | None = None) -> HttpResponse:
        """The same with its headers."""
        sent = {"content-type": "application/json", **(headers or {})}
        return await self.transport.send("POST", f"http://policy:1{path}", orjson.dumps(body), sent, 30.0)


def observed(call: Json, text: str = "## the wall") -> Any:
    """What the world answers to a tool call."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def asks(text: str) -> Any:
    """What a user says."""
    return {"role": "user", "content": text}


def turn_of(item: Json) -> list[int]:
    """What the engine had seen and said at the end of the turn."""
    return [*item["prompt_token_ids"], *item["generation_token_ids"]]


def behind(item: Json, before: Json) -> list[int]:
    """What stands in the prompt of a turn behind the turn before, with which it must begin."""
    seen = turn_of(before)
    assert item["prompt_token_ids"][: len(seen)] == seen
    found: list[int] = item["prompt_token_ids"][len(seen) :]
    return found


def asking_again(text: str) -> list[int]:
    """Ids of what the template writes between a turn with a call and the next turn, behind the former's end."""
    return encode(f"\n<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


async def _nobody() -> Directory:
    return Directory(run_id="run-1", servers={}, families={}, settings={})


@contextlib.asynccontextmanager
async def playing(*engines: TokenEngine, params: Json | None = None, **settings: Any) -> AsyncIterator[Player]:
    """A player of an episode whose request is `params`, before a model server with these settings and engines."""
    transport = LocalTransport(HttpTransport())
    for number, engine in enumerate(engines):
        transport.mount(f"http://engine:{number}", engine)
    urls = [f"http://engine:{number}/v1" for number in range(len(engines))]
    chosen = {"model": "tiny", "base_url": urls, "return_token_id_information": True}
    chosen |= {"text_tool_parser": "hermes", "retry_pause_s": 0.0}
    keys = Keys(run_id="run-1", secret="secret")
    context = Context("policy", keys, ServerClient(transport, keys, AddressBook(_nobody)))
    server = VllmModel(VllmModelSettings(**{**chosen, **settings}), context)
    transport.mount("http://policy:1", server)
    request = {"input": [asks("go up")], "tools": [TOOL], **(params or {})}
    try:
        yield Player(engines[0], server, Conversation(request), transport)
    finally:
        await transport.close()
