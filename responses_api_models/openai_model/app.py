"""openai_model: the policy behind an endpoint that speaks the Responses API itself (OpenAI, vLLM's /v1/responses).

Requests go through with the model's name put in and earlier calls in a form that can be sent; the answer's bytes come
back as they are, once it is sure that they are a turn of the model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.convert.conversion import apply_metadata
from rollyard.responses_api_models.request_validation import check_limits
from rollyard.responses_api_models.streaming import stream_proxy
from rollyard.responses_api_models.streaming.first_events import ChatOpening, ResponseOpening
from rollyard.responses_api_models.upstream.answers import completion_bytes, response_bytes, written
from rollyard.responses_api_models.upstream.endpoint_check import endpoint_advice
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.request_context import Passage
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.http.request import Call, Reply
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.responses.tool_calls import offered, sendable_items, sendable_messages
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json


class OpenaiModel(ModelServer):
    """Responses over Responses."""

    Settings: ClassVar[type[ServerSettings]] = EndpointSettings

    def __init__(self, settings: EndpointSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._model = settings.model
        self._defaults = settings.extra_body or {}
        replicas = Replicas(settings.urls)
        self.measure(replicas)
        self._upstream = Upstream(replicas, settings, settings.api_key, context.beyond)
        self._endpoints = settings

    async def advice(self) -> list[str]:
        """See `Server.advice`."""
        return await endpoint_advice(self._endpoints, self.context.beyond)

    async def responses(self, request: Json, call: Call) -> Reply:
        """A Responses create request, passed through."""
        passage = Passage.of(call, request.get("prompt_cache_key"))
        body = await self._upstream.post("/responses", self._finished(request), response_bytes, passage)
        return Reply(body, headers=passage.answer_headers)

    async def chat(self, request: Json, call: Call) -> Reply:
        """A chat create request, passed through."""
        passage = Passage.of(call, request.get("prompt_cache_key"))
        body = await self._upstream.post("/chat/completions", self._finished(request), completion_bytes, passage)
        return Reply(body, headers=passage.answer_headers)

    async def stream_responses(self, request: Json, call: Call) -> Reply:
        """The endpoint's own events, as they come."""
        passage = Passage.of(call, request.get("prompt_cache_key"))
        events = await self._upstream.stream("/responses", self._finished(request), passage, ResponseOpening)
        return _stream(stream_proxy.responses(events, stream_proxy.teller(self.name, call)), passage)

    async def stream_chat(self, request: Json, call: Call) -> Reply:
        """The endpoint's own chunks, as they come."""
        passage = Passage.of(call, request.get("prompt_cache_key"))
        events = await self._upstream.stream("/chat/completions", self._finished(request), passage, ChatOpening)
        return _stream(stream_proxy.chat(events, stream_proxy.teller(self.name, call)), passage)

    def models(self) -> list[str]:
        """The one model."""
        return [self._model]

    def _finished(self, body: Json) -> bytes:
        apply_metadata(body)
        known = offered(body.get("tools"))
        for key, sendable in (("input", sendable_items), ("messages", sendable_messages)):
            if isinstance(body.get(key), list):
                body[key] = sendable(body[key], known)
        for key, value in self._defaults.items():
            body.setdefault(key, value)
        check_limits(body)
        body["model"] = self._model
        return written(body)


def _stream(events: AsyncIterator[bytes], passage: Passage) -> Reply:
    return Reply(stream=events, content_type=SSE, headers=(*STREAM_HEADERS, *passage.answer_headers))


server = OpenaiModel
