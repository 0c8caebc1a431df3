"""A model server in front of an endpoint that supports the Responses API (OpenAI, vLLM's /v1/responses).

Requests are forwarded with the configured model name, and with earlier tool calls normalized so that endpoints accept
them. Responses are validated and returned unchanged, byte for byte.
"""

from __future__ import annotations

from rollyard.records.activity import EngineLoad
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models import streaming
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.conversion import apply_metadata, check_limits
from rollyard.responses_api_models.upstream.engine_metrics import EngineMetrics
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.response_parsing import (
    choices_of,
    completion_reader,
    encode_request,
    json_object,
    response_bytes,
)
from rollyard.responses_api_models.upstream.settings import EndpointSettings, endpoint_advice
from rollyard.responses_api_models.upstream.sse import ChatStreamStart, ResponseStreamStart
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.responses.response_validity import malformed, offered, sendable_items, sendable_messages
from rollyard.services.server.app import Context

COUNTED = ("input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text")


class OpenaiModel(ModelServer[EndpointSettings]):
    def __init__(self, settings: EndpointSettings, context: Context) -> None:
        super().__init__(settings, context)
        self._defaults = settings.extra_body or {}
        replicas = Replicas(settings.urls)
        self.measure(replicas)
        self._upstream = Upstream(replicas, settings, settings.api_key, context.external_transport)
        self._engine_metrics = EngineMetrics(self._upstream)

    async def advice(self) -> list[str]:
        return await endpoint_advice(self.settings, self.context.external_transport)

    async def responses(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = self._complete_body(request)
        return request_context.answered(await self._upstream.post("/responses", body, response_bytes, request_context))

    async def chat(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body, read = self._complete_body(request), completion_reader(request)
        return request_context.answered(await self._upstream.post("/chat/completions", body, read, request_context))

    async def stream_responses(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body, report = self._complete_body(request), streaming.event_reporter(self.name, call)
        events = await self._upstream.stream("/responses", body, request_context, ResponseStreamStart)
        return request_context.streamed(streaming.responses(events, report))

    async def stream_chat(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body, report = self._complete_body(request), streaming.event_reporter(self.name, call)
        events = await self._upstream.stream("/chat/completions", body, request_context, ChatStreamStart)
        return request_context.streamed(streaming.chat(events, report, choices_of(request)))

    async def count_tokens(self, request: Json, call: RawRequest) -> int:
        """Let the endpoint count the tokens, as OpenAI's does. Raises Failure (501) if it cannot."""
        body = self._complete_body({key: request[key] for key in COUNTED if key in request})
        try:
            answer = await self._upstream.post("/responses/input_tokens", body, json_object, RequestContext.of(call))
        except Failure as failure:
            if failure.problem.upstream_status not in (404, 405, 501):
                raise
            detail = "the endpoint cannot count tokens: it has no /responses/input_tokens; read the usage of a response"
            raise Failure(FailureKind.BAD_REQUEST, detail, status=501) from failure
        count = answer.get("input_tokens")
        if not isinstance(count, int):
            raise malformed("has no input_tokens", answer)
        return count

    def models(self) -> list[str]:
        return [self.settings.model]

    async def engine_load(self) -> tuple[int, EngineLoad | None]:
        return self._upstream.replicas.rejected, await self._engine_metrics.read()

    def _complete_body(self, body: Json) -> bytes:
        apply_metadata(body)
        known = offered(body.get("tools"))
        for key, sendable in (("input", sendable_items), ("messages", sendable_messages)):
            if isinstance(body.get(key), list):
                body[key] = sendable(body[key], known)
        for key, value in self._defaults.items():
            body.setdefault(key, value)
        check_limits(body)
        body["model"] = self.settings.model
        return encode_request(body)


server = OpenaiModel
