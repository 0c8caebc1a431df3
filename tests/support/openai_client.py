"""OpenAI's own client in front of a model server in front of a scripted engine, all over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from pydantic import BaseModel

from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
from rollyard.services.types import Json
from tests.support.scripted_engine import Engine, Step, engine, listening, model_server

T = TypeVar("T")

KINDS: list[type[Server]] = [VllmModel, OpenaiModel]
STEP: Any = {
    "type": "object",
    "properties": {"actions": {"type": "array", "items": {"type": "string"}}},
    "required": ["actions"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "name": "step", "parameters": STEP, "strict": False}]
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "step", "parameters": STEP}}]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without it each client would read all the certificates of the machine, for 50 ms."""
HI: Any = [{"role": "user", "content": "hi"}]


class Move(BaseModel):
    """What structured output is parsed into."""

    direction: str
    steps: int


def official(url: str, retries: int = 0) -> AsyncOpenAI:
    """The client of the server at `url`."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS, trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=retries, http_client=http)


@contextlib.asynccontextmanager
async def door(
    *steps: Step | Json, kind: type[Server] = VllmModel, retries: int = 0, **settings: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Engine]]:
    """The client, and the engine that remembers what it was asked."""
    async with (
        engine(*steps) as fake,
        model_server(kind, base_url=fake.url, **settings) as server,
        listening(server) as url,
        official(url, retries) as client,
    ):
        yield client, fake


@contextlib.asynccontextmanager
async def serving(kind: type[Server], **settings: Any) -> AsyncIterator[AsyncOpenAI]:
    """The client in front of a server that needs no engine."""
    async with (
        model_server(kind, **settings) as server,
        listening(server) as url,
        official(url) as client,
    ):
        yield client


async def in_a_thread(client: AsyncOpenAI, use: Callable[[OpenAI], T]) -> T:
    """What `use` makes of the synchronous client for the same door."""

    def used() -> T:
        http = DefaultHttpxClient(verify=NO_TLS, trust_env=False)
        with OpenAI(base_url=str(client.base_url), api_key="none", max_retries=0, http_client=http) as plain:
            return use(plain)

    return await asyncio.to_thread(used)
