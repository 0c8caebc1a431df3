"""The model server in front of an engine that supports Chat Completions.

Responses requests are converted, sent to `{base_url}/chat/completions`, and the completion is converted back. With
`return_token_id_information` the engine's tokens are recorded, and turns are sent as token ids (token_history.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import orjson
from pydantic import SecretStr

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models import conversion, streaming
from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.special_tokens import SpecialTokens
from rollyard.responses_api_models.chat_engine.token_backends import Capabilities, CompletionsBackend
from rollyard.responses_api_models.chat_engine.token_diagnostics import TokenDiagnostics
from rollyard.responses_api_models.chat_engine.token_history import TokenTurns, without_traces
from rollyard.responses_api_models.chat_engine.training_routes import TrainerApi
from rollyard.responses_api_models.conversion import check_limits, mark_unreadable_tool_call
from rollyard.responses_api_models.streaming import ResponseEvents
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.response_parsing import (
    choices_of,
    completion_reader,
    encode_request,
    json_object,
)
from rollyard.responses_api_models.upstream.sse import ChatStreamStart
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.responses.tool_calls import offered, sendable_items, sendable_messages
from rollyard.services.server.app import Context

S = TypeVar("S", bound=ChatEngineSettings)


class ChatEngineModel(ModelServer[S]):
    passes_stop = True

    def __init__(self, settings: S, context: Context, replicas: Replicas, api_key: SecretStr | None) -> None:
        self.upstream = Upstream(replicas, settings, api_key, context.external_transport)
        # Created before the base class registers its routes, because `route` puts their handlers behind the gate.
        self.trainer = TrainerApi(self.upstream, settings, context, self.on_invalid_weights, self.located)
        super().__init__(settings, context)
        self.measure(replicas)
        self._model = settings.model
        self._dialect = settings.dialect
        self._capabilities = capabilities = Capabilities(self.upstream, settings)
        records = settings.return_token_id_information
        policy = settings.special_tokens_in_text or ("escape" if records else "allow")
        self._special_tokens = special = SpecialTokens(
            self.upstream, settings.model, policy, settings.template_arguments
        )
        turns = TokenTurns(
            self.upstream,
            capabilities,
            self.trainer.versions,
            special,
            sends_ids=settings.send_token_ids,
            records_texts=settings.return_token_texts,
        )
        self._turns = turns if records else None
        self._template = settings.chat_template_kwargs
        self._strict = settings.strict_tools
        self._defaults = settings.extra_body or {}
        self._forced = settings.sampling_overrides or {}
        self.route("/token_check", self.__token_check, cancellable=True)
        self.trainer.mount(self)

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """Register a route. Model calls wait while weights change, and their responses report the policy version."""
        super().route(path, self.trainer.guarded(path, handler), cancellable=cancellable)

    def on_invalid_weights(self, url: str) -> None:
        """Handle an engine that lost its weights in a failed load; vLLM cannot load new weights afterwards. Servers
        that start engines themselves restart it. An external engine stays excluded until its operator restarts it,
        which this server detects.
        """

    def located(self, root: str) -> str:
        """Return the local folder of `root`, with which the engines were started; `root` itself if there is none."""
        return root

    async def start(self) -> None:
        await self.trainer.start()

    async def stop(self) -> None:
        """Wait for a running update to finish, because engines must not stay paused."""
        await self.trainer.stop()

    async def responses(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._converted_body(request)
        if self._turns is not None:
            completion = await self._turns.make(body, request_context)
            return request_context.answered(conversion.encoded_response(completion, request, self._dialect))

        def read(answer: bytes) -> bytes:
            return conversion.encoded_response(json_object(answer), request, self._dialect)

        body["messages"] = without_traces(body["messages"])
        return await self._posted(body, read, request_context)

    async def chat(self, request: Json, call: RawRequest) -> RawResponse:
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._chat_body(request)
        if self._turns is not None:
            return request_context.answered(orjson.dumps(await self._turns.make(body, request_context)))
        return await self._posted(body, completion_reader(body), request_context)

    async def _posted(self, body: Json, read: Callable[[bytes], bytes], request_context: RequestContext) -> RawResponse:
        body, _ = await self._special_tokens.treated(body, request_context)
        sent = encode_request(body)
        return request_context.answered(await self.upstream.post("/chat/completions", sent, read, request_context))

    async def stream_responses(self, request: Json, call: RawRequest) -> RawResponse:
        """Convert the engine's chunks to events. Recorded tokens need the complete response, which is then streamed."""
        if self._turns is not None:
            return await super().stream_responses(request, call)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = {**await self._converted_body(request), "stream": True, "stream_options": {"include_usage": True}}
        events = ResponseEvents(request, self._dialect, mark_unreadable_tool_call)
        chunks = await self._chunks(body, request_context)
        return request_context.streamed(streaming.converted(chunks, events, streaming.event_reporter(self.name, call)))

    async def stream_chat(self, request: Json, call: RawRequest) -> RawResponse:
        """Forward the engine's chunks. If tokens are recorded, the chunks are built from the complete response."""
        if self._turns is not None:
            return await super().stream_chat(request, call)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._chat_body(request)
        chunks = await self._chunks(body, request_context)
        report = streaming.event_reporter(self.name, call)
        return request_context.streamed(streaming.chat(chunks, report, choices_of(body)))

    async def _chunks(self, body: Json, request_context: RequestContext) -> AsyncIterator[bytes]:
        body, _ = await self._special_tokens.treated(body, request_context)
        return await self.upstream.stream("/chat/completions", encode_request(body), request_context, ChatStreamStart)

    async def count_tokens(self, request: Json, call: RawRequest) -> int:
        """Let the engine render and tokenize the prompt. Raises Failure (501) if it cannot."""
        request_context = RequestContext.of(call)
        body = await self._converted_body(request)
        body["messages"] = without_traces(body["messages"])
        body, _ = await self._special_tokens.treated(body, request_context)
        return await count_prompt_tokens(self.upstream, body, request_context)

    def models(self) -> list[str]:
        return [self._model]

    async def __token_check(self, call: RawRequest) -> bytes:
        """Check for `ng_doctor tokens` whether multi-turn histories are contiguous. Body: `{"samples": 8}`."""
        samples = call.json().get("samples", 8)
        if not isinstance(samples, int) or not 0 <= samples <= 1000:
            raise Failure(FailureKind.BAD_REQUEST, f"samples is {samples!r}; expected an integer from 0 to 1000")
        request_context = RequestContext({})
        backend = await self._capabilities.backend(request_context)
        diagnostics = TokenDiagnostics(
            self.upstream,
            backend or CompletionsBackend(self.upstream, True),
            self._model,
            await self.trainer.takes_seeds(),
        )
        report = {
            "model": self._model,
            "token_in": backend.name if backend else "off",
            "logprobs_mode": await self._capabilities.logprobs_mode(request_context),
            "template": await diagnostics.template(),
            "sampled": await diagnostics.sampled(samples),
        }
        return orjson.dumps(report)

    async def _converted_body(self, request: Json) -> Json:
        """Convert a Responses create request, with earlier tool calls normalized so that engines accept them."""
        items = request.get("input")
        if isinstance(items, list):
            request = {**request, "input": sendable_items(items, offered(request.get("tools")))}
        return await self._complete_body(conversion.request_to_chat(request, self._dialect))

    async def _chat_body(self, request: Json) -> Json:
        conversion.apply_metadata(request)
        if isinstance(messages := request.get("messages"), list):
            request["messages"] = sendable_messages(messages, offered(request.get("tools")))
        if self._dialect.developer_as_system:
            for message in request["messages"] if isinstance(messages, list) else ():
                if isinstance(message, dict) and message.get("role") == "developer":
                    message["role"] = "system"
        return await self._complete_body(request)

    async def _complete_body(self, body: Json) -> Json:
        if self._template:
            given = body.get("chat_template_kwargs")
            body["chat_template_kwargs"] = {**self._template, **(given if isinstance(given, dict) else {})}
        for key, value in self._defaults.items():
            body.setdefault(key, value)
        if self._strict is not None:
            tools = body.get("tools")
            for tool in tools if isinstance(tools, list) else ():
                if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
                    tool["function"] = {**tool["function"], "strict": self._strict}
        body.update(self._forced)
        check_limits(body)
        body["model"] = self._model
        await self.trainer.check_seed(body)
        return body


_PROMPT = ("model", "messages", "tools", "chat_template", "chat_template_kwargs")
_MISSING = frozenset({404, 405, 501})


async def count_prompt_tokens(upstream: Upstream, body: Json, request_context: RequestContext) -> int:
    """Return the number of tokens in the prompt of a chat request. Raises Failure bad_request with status 501 if the
    engine has no endpoint that tokenizes conversations.
    """
    sent = {key: body[key] for key in _PROMPT if key in body}
    try:
        answer = await upstream.post("/../tokenize", orjson.dumps(sent), json_object, request_context)
    except Failure as failure:
        if failure.problem.upstream_status in _MISSING:
            raise _unsupported(f"status {failure.problem.upstream_status}") from failure
        raise
    count = answer.get("count")
    if not isinstance(count, int) or isinstance(count, bool):
        raise _unsupported(f"the fields {', '.join(sorted(answer)) or 'none'}")
    return count


def _unsupported(found: str) -> Failure:
    detail = (
        f"the engine cannot count the tokens of a conversation: its /tokenize answered with {found}; expected the "
        "field count, as vLLM returns it. Read the usage of a response instead"
    )
    return Failure(FailureKind.BAD_REQUEST, detail, status=501)
