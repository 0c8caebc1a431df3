"""ChatEngineModel: the policy behind an engine that speaks Chat Completions, wherever it runs.

Responses requests are converted, sent to `{base_url}/chat/completions`, and the completion is converted back. With
`return_token_id_information` the engine's tokens are recorded, and later turns are sent as token ids (turns.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

import orjson
from pydantic import SecretStr

from rollyard.responses_api_models.base import ModelServer
from rollyard.responses_api_models.chat_engine.capabilities import Capabilities
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.special_tokens import SpecialTokens
from rollyard.responses_api_models.chat_engine.token_backends.completions import CompletionsBackend
from rollyard.responses_api_models.chat_engine.token_diagnostics import TokenDiagnostics
from rollyard.responses_api_models.chat_engine.token_history import history
from rollyard.responses_api_models.chat_engine.token_history.turns import TokenTurns
from rollyard.responses_api_models.chat_engine.unreadable_tool_calls import mark_unreadable_tool_call
from rollyard.responses_api_models.chat_engine.weights.training_routes import TrainerApi
from rollyard.responses_api_models.convert import conversion
from rollyard.responses_api_models.request_validation import check_limits
from rollyard.responses_api_models.streaming import stream_proxy
from rollyard.responses_api_models.streaming.events import ResponseEvents
from rollyard.responses_api_models.streaming.first_events import ChatStreamStart
from rollyard.responses_api_models.upstream.answers import completion_bytes, encode_request, json_object
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.request import Handler, RawRequest, RawResponse
from rollyard.services.responses.response_validity import malformed
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.responses.tool_calls import offered, sendable_items, sendable_messages
from rollyard.services.server.app import Context
from rollyard.services.types import Json

S = TypeVar("S", bound=ChatEngineSettings)


class ChatEngineModel(ModelServer[S]):
    """Responses over Chat Completions, wherever the engine runs."""

    def __init__(self, settings: S, context: Context, replicas: Replicas, api_key: SecretStr | None) -> None:
        self.upstream = Upstream(replicas, settings, api_key, context.beyond)
        # Before the base registers its routes: each of them goes through the trainer's gate.
        self.trainer = TrainerApi(self.upstream, settings, context, self.on_invalid_weights, self.located)
        super().__init__(settings, context)
        self.measure(replicas)
        self._model = settings.model
        self._dialect = settings.dialect
        self._abilities = abilities = Capabilities(self.upstream, settings)
        records = settings.return_token_id_information
        treatment = settings.special_tokens_in_text or ("escape" if records else "allow")
        self._special_tokens = special = SpecialTokens(
            self.upstream, settings.model, treatment, settings.template_arguments
        )
        turns = TokenTurns(self.upstream, abilities, self.trainer.versions, special, sends_ids=settings.send_token_ids)
        self._turns = turns if records else None
        self._template = settings.chat_template_kwargs
        self._strict = settings.strict_tools
        self._defaults = settings.extra_body or {}
        self._forced = settings.sampling_overrides or {}
        self.route("/token_check", self.__token_check, cancellable=True)
        self.trainer.mount(self)

    @property
    def policy_version(self) -> str:
        """Of the weights that the engines hold."""
        return self.trainer.versions.now

    def route(self, path: str, handler: Handler, *, cancellable: bool = False) -> None:
        """See `Server.route`. Model calls wait while weights change, and their answers carry the policy's version."""
        super().route(path, self.trainer.guarded(path, handler), cancellable=cancellable)

    async def register_engine(self, url: str) -> None:
        """Bring an engine that has just been started to the policy's weights, then add it to the pool of `upstream`.

        For servers that start engines themselves, in place of `upstream.replicas.add(url)`: an engine comes up with the
        weights it was started with, which an update may have replaced since. Call it once the engine answers, and
        `gone(url)` when it has ended. Raises Failure when the engine does not take the weights (the
        folder of the last update may be gone): it is not in the pool then and should be ended and started again.
        """
        await self.trainer.register_engine(url)

    def gone(self, url: str) -> None:
        """Take an engine that has ended out of the pool. For servers that start engines themselves."""
        self.trainer.gone(url)

    def on_invalid_weights(self, url: str) -> None:
        """The engine at `url` has lost its weights in a load that failed, and vLLM takes no others after that.

        For servers that start engines themselves: end it, and `adopt` the next; until it has left the pool no model
        call is let in. An engine of somebody else's waits until he starts it again, which this server then sees.
        """

    def located(self, root: str) -> str:
        """The folder on this machine of what engines were started with, which may be a name on a hub."""
        return root

    async def start(self) -> None:
        """Ask engines that were there before what weights they hold."""
        await self.trainer.start()

    async def stop(self) -> None:
        """Bring an update that is running to its end: engines that stay paused would keep everybody waiting."""
        await self.trainer.stop()

    async def responses(self, request: Json, call: RawRequest) -> RawResponse:
        """A Responses create request, answered by the engine's chat endpoint."""
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._finished(conversion.request_to_chat(_sendable(request), self._dialect))
        if self._turns is not None:
            return self._reply(self._responded(await self._turns.make(body, request_context), request), request_context)

        def read(answer: bytes) -> bytes:
            return self._responded(json_object(answer), request)

        body["messages"] = history.without_traces(body["messages"])
        body, _ = await self._special_tokens.treated(body, request_context)
        return self._reply(
            await self.upstream.post("/chat/completions", encode_request(body), read, request_context), request_context
        )

    def _responded(self, completion: Json, request: Json) -> bytes:
        response = conversion.chat_to_response(completion, request, self._dialect)
        mark_unreadable_tool_call(response)
        try:
            return orjson.dumps(response)
        except TypeError as error:
            raise malformed(f"cannot be sent on ({error})", completion.keys()) from error

    async def chat(self, request: Json, call: RawRequest) -> RawResponse:
        """A chat request goes through with the model's name put in, and the answer's bytes come back."""
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._chat_body(request)
        if self._turns is not None:
            return self._reply(orjson.dumps(await self._turns.make(body, request_context)), request_context)
        body, _ = await self._special_tokens.treated(body, request_context)
        answer = await self.upstream.post("/chat/completions", encode_request(body), completion_bytes, request_context)
        return self._reply(answer, request_context)

    async def stream_responses(self, request: Json, call: RawRequest) -> RawResponse:
        """The engine's chunks as Responses events. With tokens recorded made of the whole answer: no way in for token
        ids gives parsed chunks out.
        """
        if self._turns is not None:
            return await super().stream_responses(request, call)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body = await self._finished(conversion.request_to_chat(_sendable(request), self._dialect))
        body, _ = await self._special_tokens.treated(body, request_context)
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = await self.upstream.stream("/chat/completions", encode_request(body), request_context, ChatStreamStart)
        made = ResponseEvents(request, self._dialect, mark_unreadable_tool_call)
        return self._stream(
            stream_proxy.converted(chunks, made, stream_proxy.event_reporter(self.name, call)), request_context
        )

    async def stream_chat(self, request: Json, call: RawRequest) -> RawResponse:
        """The engine's chunks as they come; with tokens recorded as above."""
        if self._turns is not None:
            return await super().stream_chat(request, call)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        body, _ = await self._special_tokens.treated(await self._chat_body(request), request_context)
        chunks = await self.upstream.stream("/chat/completions", encode_request(body), request_context, ChatStreamStart)
        return self._stream(stream_proxy.chat(chunks, stream_proxy.event_reporter(self.name, call)), request_context)

    def models(self) -> list[str]:
        """The one model."""
        return [self._model]

    async def __token_check(self, call: RawRequest) -> bytes:
        """Is multi-turn contiguous with this model, template and parser? `{"samples": 8}`; see ng_doctor tokens."""
        samples = call.json().get("samples", 8)
        if not isinstance(samples, int) or not 0 <= samples <= 1000:
            raise Failure(FailureKind.BAD_REQUEST, f"samples is {samples!r}; a number from 0 to 1000 is expected")
        request_context = RequestContext({})
        backend = await self._abilities.backend(request_context)
        checkup = TokenDiagnostics(
            self.upstream,
            backend or CompletionsBackend(self.upstream, True),
            self._model,
            await self.trainer.takes_seeds(),
        )
        report = {
            "model": self._model,
            "token_in": backend.name if backend else "off",
            "logprobs_mode": await self._abilities.logprobs_mode(request_context),
            "template": await checkup.template(),
            "sampled": await checkup.sampled(samples),
        }
        return orjson.dumps(report)

    async def _chat_body(self, request: Json) -> Json:
        conversion.apply_metadata(request)
        if isinstance(messages := request.get("messages"), list):
            request["messages"] = sendable_messages(messages, offered(request.get("tools")))
        if self._dialect.developer_as_system:
            for message in request["messages"] if isinstance(messages, list) else ():
                if isinstance(message, dict) and message.get("role") == "developer":
                    message["role"] = "system"
        return await self._finished(request)

    async def _finished(self, body: Json) -> Json:
        """The body as it is sent: the settings' share added."""
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

    def _reply(self, body: bytes, request_context: RequestContext) -> RawResponse:
        return RawResponse(body, headers=request_context.answer_headers)

    def _stream(self, events: AsyncIterator[bytes], request_context: RequestContext) -> RawResponse:
        return RawResponse(stream=events, content_type=SSE, headers=(*STREAM_HEADERS, *request_context.answer_headers))


def _sendable(request: Json) -> Json:
    """The request with every earlier call in a form that engines take."""
    items = request.get("input")
    return (
        {**request, "input": sendable_items(items, offered(request.get("tools")))}
        if isinstance(items, list)
        else request
    )
