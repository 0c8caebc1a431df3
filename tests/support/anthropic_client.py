"""Anthropic's official client in front of a model server, over a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.server.app import Server
from tests.support.openai_client import NO_TLS
from tests.support.scripted_engine import Engine, Step, engine, listening, model_server


def make_anthropic_client(url: str) -> AsyncAnthropic:
    """An official client for the server at `url`."""
    http = DefaultAsyncHttpxClient(verify=NO_TLS, trust_env=False)
    return AsyncAnthropic(base_url=url, api_key="none", max_retries=2, http_client=http)


@contextlib.asynccontextmanager
async def anthropic_and_engine(
    *steps: Step | Json, kind: type[Server] = VllmModel, **settings: Any
) -> AsyncIterator[tuple[AsyncAnthropic, Engine]]:
    async with (
        engine(*steps) as fake,
        model_server(kind, base_url=fake.url, **settings) as server,
        listening(server) as url,
        make_anthropic_client(url) as client,
    ):
        yield client, fake


@contextlib.asynccontextmanager
async def anthropic_client_of(kind: type[Server], **settings: Any) -> AsyncIterator[AsyncAnthropic]:
    """A client of a model server that needs no engine."""
    async with model_server(kind, **settings) as server, listening(server) as url, make_anthropic_client(url) as client:
        yield client
