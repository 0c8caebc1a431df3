"""Clients of a model server that records tokens: an agent over Responses, a client over Chat Completions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from rollyard.agents.episode import Conversation
from rollyard.records.rollout_types import Response, ResponseItem
from rollyard.records.run_types import Keys
from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context, Server
from tests.support.scripted_engine import empty_directory
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode, encode_letters

TOOL: Json = {
    "type": "function",
    "name": "push",
    "parameters": {"type": "object", "properties": {"actions": {"type": "array", "items": {"type": "string"}}}},
}
CALL_TURN = [*encode_letters('<tool_call>\n{"name": "push", "arguments": {"actions": ["up"]}}\n</tool_call>'), END]
"""A tool call generated letter by letter, as no tokenizer would encode it."""
TEXT_TURN = [*encode_letters("the box"), END]


@dataclass
class EpisodeClient:
    """One episode with the model; each turn's last item holds its tokens."""

    engine: TokenEngine
    server: Server
    conversation: Conversation
    transport: LocalTransport
    responses: list[Json] = field(default_factory=list)

    async def ask(self, *new: ResponseItem, headers: Json | None = None) -> Json:
        """Send the conversation with these new items; the last item of the model's turn."""
        for item in new:
            self.conversation.answer(item)
        status, response = await self.send("/v1/responses", orjson.loads(self.conversation.request()), headers)
        assert status == 200, response
        self.conversation.add(cast(Response, response))
        self.responses.append(response)
        last: Json = response["output"][-1]
        return last

    async def send(self, path: str, body: Json, headers: Json | None = None) -> tuple[int, Json]:
        """Send any request to the model server; status and body of the response."""
        answer = await self.answer(path, body, headers)
        return answer.status, orjson.loads(answer.body)

    async def answer(self, path: str, body: Json, headers: Json | None = None) -> HttpResponse:
        """Send any request to the model server; the response with its headers."""
        sent = {"content-type": "application/json", **(headers or {})}
        return await self.transport.send("POST", f"http://policy:1{path}", orjson.dumps(body), sent, 30.0)


def tool_output(call: Json, text: str = "## the wall") -> Any:
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}


def user_message(text: str) -> Any:
    return {"role": "user", "content": text}


def turn_tokens(item: Json) -> list[int]:
    return [*item["prompt_token_ids"], *item["generation_token_ids"]]


def appended_tokens(item: Json, previous: Json) -> list[int]:
    """The prompt tokens that follow the previous turn, which the prompt must start with."""
    prefix = turn_tokens(previous)
    assert item["prompt_token_ids"][: len(prefix)] == prefix
    appended: list[int] = item["prompt_token_ids"][len(prefix) :]
    return appended


def tool_turn_tokens(text: str) -> list[int]:
    """The tokens that the template writes after a turn with a tool call, up to the next turn."""
    return encode(f"\n<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


@contextlib.asynccontextmanager
async def open_episode(
    *engines: TokenEngine, params: Json | None = None, **settings: Any
) -> AsyncIterator[EpisodeClient]:
    """Start an episode whose request has `params`, with a model server of these settings in front of the engines."""
    transport = LocalTransport(HttpTransport())
    for number, engine in enumerate(engines):
        transport.mount(f"http://engine:{number}", engine)
    urls = [f"http://engine:{number}/v1" for number in range(len(engines))]
    defaults = {"model": "tiny", "base_url": urls, "return_token_id_information": True}
    defaults |= {"text_tool_parser": "hermes", "retry_pause_s": 0.0}
    keys = Keys(run_id="run-1", secret="secret")
    context = Context("policy", keys, ServerClient(transport, keys, AddressBook(empty_directory)))
    server = VllmModel(VllmModelSettings(**{**defaults, **settings}), context)
    transport.mount("http://policy:1", server)
    request = {"input": [user_message("go up")], "tools": [TOOL], **(params or {})}
    try:
        yield EpisodeClient(engines[0], server, Conversation(request), transport)
    finally:
        await transport.close()
