"""The official OpenAI client, a model server and a scripted engine, connected by real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from pydantic import BaseModel

from rollyard.records.types import Json
from rollyard.responses_api_models.openai_model.app import OpenaiModel
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
from tests.support.scripted_engine import Engine, Step, engine, listening, model_server

T = TypeVar("T")

MODEL_SERVERS: list[type[Server]] = [VllmModel, OpenaiModel]
STEP: Any = {
    "type": "object",
    "properties": {"actions": {"type": "array", "items": {"type": "string"}}},
    "required": ["actions"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "name": "step", "parameters": STEP, "strict": False}]
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "step", "parameters": STEP}}]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Saves each client 50 ms: it would otherwise load all the machine's certificates."""
HELLO: Any = [{"role": "user", "content": "hi"}]


class Move(BaseModel):
    direction: str
    steps: int


def make_openai_client(url: str, retries: int = 0) -> AsyncOpenAI:
    """An official client for the server at `url`."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS, trust_env=False)
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=retries, http_client=http)


@contextlib.asynccontextmanager
async def client_and_engine(
    *steps: Step | Json, kind: type[Server] = VllmModel, retries: int = 0, **settings: Any
) -> AsyncIterator[tuple[AsyncOpenAI, Engine]]:
    async with (
        engine(*steps) as fake,
        model_server(kind, base_url=fake.url, **settings) as server,
        listening(server) as url,
        make_openai_client(url, retries) as client,
    ):
        yield client, fake


@contextlib.asynccontextmanager
async def client_of_server(kind: type[Server], **settings: Any) -> AsyncIterator[AsyncOpenAI]:
    """A client of a model server that needs no engine."""
    async with model_server(kind, **settings) as server, listening(server) as url, make_openai_client(url) as client:
        yield client


async def run_sync_client(client: AsyncOpenAI, use: Callable[[OpenAI], T]) -> T:
    """Run `use` in a thread with a synchronous client of the same server."""

    def run() -> T:
        http = DefaultHttpxClient(verify=NO_TLS, trust_env=False)
        with OpenAI(base_url=str(client.base_url), api_key="none", max_retries=0, http_client=http) as plain:
            return use(plain)

    return await asyncio.to_thread(run)
