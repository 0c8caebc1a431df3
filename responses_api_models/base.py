"""Defines the base class for model servers, which serve a model through OpenAI's APIs and Anthropic's.

    class Echo(ModelServer[EchoSettings]):
        async def responses(self, request: Json, call: Call) -> Json: ...

    server = Echo

The type argument is the settings class; the settings are in `self.settings`.
You must define `responses`: it takes a Responses create request and returns a complete Response object (plain dicts).
You may define `chat` (by default, Chat Completions requests are converted for `responses` and the results back),
`models`, `count_tokens`, and, if the model streams, `stream_responses` and `stream_chat` (by default, the finished
response is sent as a stream). Requests of Anthropic's Messages API are always converted. The base class provides the
routes, and returns errors as problem documents or, on Anthropic's routes, in its format. If the caller disconnects,
your coroutine is cancelled or your stream is closed, which lets an engine behind it abort the request.
"""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Sized
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

import orjson
from pydantic import SecretStr

from rollyard.records.activity import LOAD_PATH, EngineLoad, ModelLoad
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import TOKEN_FIELDS, Json, items
from rollyard.responses_api_models import conversion
from rollyard.responses_api_models.anthropic_api import COUNT_TOKENS, MESSAGES, AnthropicApi, as_anthropic_error
from rollyard.responses_api_models.conversion import Dialect
from rollyard.responses_api_models.recording import Recorder
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.response_parsing import encode_request, json_object, response_bytes
from rollyard.responses_api_models.upstream.settings import CallSettings
from rollyard.responses_api_models.upstream.sse import chat_chunks
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.responses import api_shapes, stream_events
from rollyard.services.responses.policy_endpoint import POLICY_HEADER, POLICY_PATH, PolicyEndpoint, unsealed
from rollyard.services.responses.recorded_episode import RECORDED
from rollyard.services.responses.response_validity import offered, sendable_items
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.runtime.process_setup import available_memory
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import REDACTED, ServerSettings, settings_argument

S = TypeVar("S", bound=ServerSettings)


class ModelServer(Server, Generic[S]):
    settings: S
    passes_stop: ClassVar[bool] = False
    """Whether `responses` supports `stop`, a list of stop sequences, and reports the one that ended the response as
    `stop_sequence`. Otherwise, messages in Anthropic's format are cut at the first one."""
    keeps_input: ClassVar[bool] = False
    """Whether `responses` leaves its request's parameters and items unchanged. Those of an episode are then parsed
    once, and later calls get the same objects; once `episode_of(call).converted` is set, only the new items."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Settings" not in cls.__dict__:
            cls.Settings = settings_argument(cls, ServerSettings) or cls.Settings

    def __init__(self, settings: S, context: Context) -> None:
        super().__init__(settings, context)
        self.__recent = RecentRequests(
            keeps_input=self.keeps_input, max_bytes=min(int(KEPT_SHARE * available_memory()[1]), MAX_KEPT_BYTES)
        )
        self.route("/v1/responses", self.__serve_responses, cancellable=True, shape=api_shapes.RESPONSES)
        self.route("/v1/chat/completions", self.__serve_chat, cancellable=True, shape=api_shapes.CHAT)
        anthropic = AnthropicApi(self.responses, self.stream_responses, self.count_tokens, passes_stop=self.passes_stop)
        for path, handler, shape in (
            (MESSAGES, anthropic.create, api_shapes.MESSAGES),
            (COUNT_TOKENS, anthropic.count_tokens, api_shapes.TOKEN_COUNT),
        ):
            self.route(path, handler, cancellable=True, shape=replace(shape, errors=api_shapes.ApiError))
            self.format_errors(path, as_anthropic_error)
        models = ("/v1/models", "/v1/models/{name:path}")
        self.allow_play("/v1/responses", "/v1/chat/completions", MESSAGES, COUNT_TOKENS, *models)
        self.__policies = EpisodePolicies(settings, context, self.models)
        self.route(POLICY_PATH, self.__policies.respond, cancellable=True, shape=api_shapes.RESPONSES)
        recorder = Recorder(self.__respond, self.count_tokens, passes_stop=self.passes_stop)
        for path, (recorded, shape) in recorder.routes.items():
            self.route(path, recorded, cancellable=True, shape=shape)
        self.app.get("/episodes/{episode}")(self.__recent.of_episode)
        self.app.get(LOAD_PATH, response_model=None)(self.__load)
        self.app.get("/v1/models", response_model=None)(self.__list_models)
        self.app.get("/v1/models/{name:path}", response_model=None)(self.__retrieve_model)

    async def responses(self, request: Json, call: RawRequest) -> Json | bytes | RawResponse:
        """Return the complete Response object for a create request, from which the `stream` fields have been removed.

        Subclasses must implement this method. To pass on a response unchanged, return bytes or a RawResponse.
        """
        raise NotImplementedError(f"{type(self).__name__} must define responses")

    async def chat(self, request: Json, call: RawRequest) -> Json | bytes | RawResponse:
        """Return the complete chat completion for a Chat Completions create request."""
        answer = _checked(await self.responses(conversion.chat_request_to_responses(request), call))
        if isinstance(answer, RawResponse):
            if answer.status >= 400:
                return answer
            answer = answer.body
        response: Json = orjson.loads(answer) if isinstance(answer, bytes) else answer
        return conversion.response_to_chat(response)

    async def count_tokens(self, request: Json, call: RawRequest) -> int:
        """Return the exact number of tokens in the prompt of a Responses create request.

        By default, raises Failure bad_request with status 501.
        """
        detail = f"{self.name} cannot count tokens: its model server has no tokenizer; read the usage of a response"
        raise Failure(FailureKind.BAD_REQUEST, detail, status=501)

    def episode_of(self, call: RawRequest) -> EpisodeInput | None:
        """Return what is kept of the episode that the call belongs to; None if it names none."""
        return self.__recent.find(call)

    def complete(self, request: Json, call: RawRequest) -> Json:
        """Return the request with all its items, also if it got only those since `episode_of(call).converted`."""
        episode = self.episode_of(call)
        if episode is None or episode.converted is None or episode.items is not request.get("input"):
            return request
        return {**request, "input": episode.complete()["input"]}

    def models(self) -> list[str]:
        """Return the model names for `GET /v1/models`."""
        return [self.name]

    async def engine_load(self) -> tuple[int, EngineLoad | None]:
        """Return the number of attempts that failed because of the load, and what the engines report."""
        return 0, None

    async def stream_responses(self, request: Json, call: RawRequest) -> RawResponse:
        """Return a Responses event stream. The request still contains `stream` and `stream_options`."""
        answer = await self.responses(_without_stream(request), call)
        return _streamed(answer, stream_events.whole)

    async def stream_chat(self, request: Json, call: RawRequest) -> RawResponse:
        """Return a stream of chat completion chunks. The request still contains `stream` and `stream_options`."""
        with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        answer = await self.chat(_without_stream(request), call)
        return _streamed(answer, lambda completion: chat_chunks(completion, with_usage))

    async def __respond(self, request: Json, call: RawRequest) -> Json | bytes | RawResponse:
        """Return the response to a call of a recorded episode, which may have a policy of its own."""
        if POLICY_HEADER.encode() in call.headers:
            return await self.__policies.create(request, call)
        return _checked(await self.responses(request, call))

    async def __serve_responses(self, call: RawRequest) -> bytes | RawResponse:
        """Create a Response (OpenAI's Responses API). With `"stream": true`, return it as a stream of events."""
        request = self.__recent.read(call)
        try:
            if request.get("stream"):
                return await self.stream_responses(request, call)
            return _encoded(await self.responses(_without_stream(request), call))
        finally:
            self.__recent.finish(call)

    async def __serve_chat(self, call: RawRequest) -> bytes | RawResponse:
        """Create a chat completion (OpenAI's API). With `"stream": true`, return it as a stream of chunks."""
        request = call.json()
        conversion.check_chat_request(request)
        if request.get("stream"):
            return await self.stream_chat(request, call)
        return _encoded(await self.chat(_without_stream(request), call))

    async def __load(self) -> Json:
        """Return the number and duration of model calls, and the load that the engines report."""
        routes = [self.requests_to(path) for path in _MODEL_CALLS]
        finished = sum(count for route in routes for count in route.statuses.values())
        failed = sum(route.statuses[status] for route in routes for status in list(route.statuses) if _failed(status))
        rejected, engine = await self.engine_load()
        load = ModelLoad(
            finished=finished,
            failed=failed,
            seconds=sum(route.total_s for route in routes),
            in_flight=self.in_flight - 1,  # without this request
            rejected=rejected,
            engine=engine,
        )
        return load.model_dump()

    async def __list_models(self) -> Json:
        """Return the models of this server in OpenAI's list format."""
        return {"object": "list", "data": [self.__entry(name) for name in self.models()]}

    async def __retrieve_model(self, name: str) -> Json:
        if name not in (known := self.models()):
            detail = f"this server has no model {name!r}; it serves {', '.join(known)}"
            raise Failure(FailureKind.BAD_REQUEST, detail, status=404, code="model_not_found")
        return self.__entry(name)

    def __entry(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": int(time.time()), "owned_by": self.name}


_DIALECTS = ("/v1/responses", "/v1/chat/completions", MESSAGES)
_MODEL_CALLS = (*_DIALECTS, *(f"{RECORDED}{path}" for path in _DIALECTS), POLICY_PATH)


def _failed(status: int) -> bool:
    return status >= 500 or status == 429


def _without_stream(request: Json) -> Json:
    request.pop("stream", None)
    request.pop("stream_options", None)
    return request


def _checked(answer: Json | bytes | RawResponse) -> Json | bytes | RawResponse:
    if not isinstance(answer, dict | bytes | RawResponse):
        raise TypeError(f"the model server returned {answer!r:.100}; expected a dict, bytes or a RawResponse")
    return answer


def _encoded(answer: Json | bytes | RawResponse) -> bytes | RawResponse:
    checked = _checked(answer)
    return orjson.dumps(checked) if isinstance(checked, dict) else checked


def _streamed(answer: Json | bytes | RawResponse, events: Callable[[Json], bytes]) -> RawResponse:
    headers: tuple[tuple[bytes, bytes], ...] = STREAM_HEADERS
    if isinstance(answer, RawResponse):
        if answer.status >= 400 or answer.stream is not None:
            return answer
        headers = (*STREAM_HEADERS, *answer.headers)
        answer = answer.body
    if isinstance(answer, bytes):
        answer = orjson.loads(answer)
        assert isinstance(answer, dict)
    return RawResponse(events(answer), content_type=SSE, headers=headers)


KEPT_SHARE, MAX_KEPT_BYTES = 1 / 16, 2 << 30
"""The memory of the requests that are kept, at most: this share of the host's, and so many bytes. The episodes that
were silent for the longest time are forgotten first."""
SILENT_S = 60.0
"""An episode that made no call for so long, and waits for none, is forgotten: most have ended by then, and for another
one, parsing a conversation again costs little after such a time."""
PARSED = 6
"""Memory of parsed items in bytes per byte of their JSON: that of token ids and logprobs, which is the most."""
EPISODE_BYTES = 8 << 10
"""Memory of an episode in addition to its bytes: parsed parameters, with tools, and the new items."""
_HEADER = EPISODE_HEADER.encode()
_END = b"]}"
"""The end of a request whose last parameter is a list."""
_COMMA = ord(",")


@dataclass(slots=True)
class EpisodeInput:
    """The last request of an episode. The next one usually repeats it and adds items, which alone are then parsed."""

    start: int
    """Number of items in the episode's first request."""
    turn: int = 0
    calls: int = 0
    """Number of its requests that are not answered yet."""
    at: float = 0.0
    text: bytes = b""
    """The body, up to the end of its input if it can be continued."""
    is_open: bool = False
    """Whether a later request may continue `text`, because its last parameter is an input of items."""
    params: Json = field(default_factory=dict)
    """All parameters but the input, if it can be continued."""
    items: list[Any] = field(default_factory=list)
    """The input as the last request got it: all items, or those since `converted`."""
    count: int = 0
    """Number of all items."""
    converted: Sized | None = None
    """What the model server made of the request, with its size in bytes. Parsed items take several times the memory of
    their text, so they are not kept any more."""
    counted: int = 0
    """The memory with which the episode counts."""

    @property
    def body(self) -> bytes:
        return self.text + _END if self.is_open else self.text

    def continued(self, body: bytes) -> Json | None:
        """Return the request if it is the last one with more items; None for any other."""
        end = len(self.text)
        if not self.is_open or not body.startswith(self.text) or not body.endswith(_END, end):
            return None
        if len(body) > end + len(_END):
            try:
                items = orjson.loads(b"[" + body[end + 1 : -1])
            except orjson.JSONDecodeError:
                return None
            if not items or body[end] != _COMMA:
                return None
            self.items = items if self.converted is not None else [*self.items, *items]
            self.text = body[: -len(_END)]
            self.count += len(items)
        elif self.converted is not None:
            self.items = []
        return {**self.params, "input": self.items}

    def complete(self) -> Json:
        """Return the whole request, parsed again, as if it were the first one of its episode."""
        self.converted, self.items = None, orjson.loads(self.body)["input"]
        return {**self.params, "input": self.items}

    def begin(self, body: bytes, request: Json, *, keep: bool) -> None:
        """Start again with a request that does not continue the last one."""
        given = request.get("input")
        is_last = next(reversed(request), "") == "input" and body.endswith(_END)
        self.is_open = keep and is_last and isinstance(given, list) and bool(given)
        self.text = body[: -len(_END)] if self.is_open else body
        self.params = {key: value for key, value in request.items() if key != "input"} if self.is_open else {}
        self.items = given if self.is_open and isinstance(given, list) else []
        self.count = len(self.items)
        self.converted = None


class RecentRequests:
    """The last request of each episode, for those who watch it and for its next request."""

    def __init__(self, *, keeps_input: bool, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._keeps_input = keeps_input
        self._max_bytes = max_bytes
        self._requests: OrderedDict[bytes, EpisodeInput] = OrderedDict()
        self._bytes = 0

    def find(self, call: RawRequest) -> EpisodeInput | None:
        episode = call.headers.get(_HEADER)
        return None if episode is None else self._requests.get(episode)

    def read(self, call: RawRequest) -> Json:
        """Return the request, and remember it if it names its episode. Raises Failure bad_request if it is invalid."""
        episode = call.headers.get(_HEADER)
        known = None if episode is None else self._requests.get(episode)
        request = None if known is None else known.continued(call.body)
        if request is None:
            request = call.json()
            conversion.check_responses_request(request)
            if episode is None:
                return request
            if known is None:
                given = request.get("input")
                known = EpisodeInput(len(given) if isinstance(given, list) else 1)
                self._requests[episode] = known
            known.begin(call.body, request, keep=self._keeps_input)
        assert known is not None
        known.turn += 1
        known.calls += 1
        known.at = now = self._clock()
        self._requests.move_to_end(episode)  # type: ignore[arg-type]
        size = EPISODE_BYTES + len(known.text)
        if known.converted is not None:
            size += len(known.converted)
        elif known.is_open:  # a first request is about to be converted
            size += (PARSED if known.turn > 1 else 1) * len(known.text)
        self._bytes += size - known.counted
        known.counted = size
        while len(self._requests) > 1:
            name = next(iter(self._requests))
            oldest = self._requests[name]
            if self._bytes <= self._max_bytes:
                if now - oldest.at < SILENT_S:
                    break
                if oldest.calls:
                    oldest.at = now
                    self._requests.move_to_end(name)
                    continue
            del self._requests[name]
            self._bytes -= oldest.counted
        return request

    def finish(self, call: RawRequest) -> None:
        """Note that a request was answered. If no other one follows for a while, the episode has ended."""
        if (known := self.find(call)) is not None:
            known.calls = max(known.calls - 1, 0)  # it may have been forgotten meanwhile
            known.at = self._clock()

    async def of_episode(self, episode: str) -> Json:
        """Return the last request of an episode: its input, its other parameters, and where the episode began."""
        if (found := self._requests.get(episode.encode("latin-1", "backslashreplace"))) is None:
            detail = f"this server remembers no request of episode {episode[:64]!r}"
            raise Failure(FailureKind.BAD_REQUEST, detail, status=404, code="episode_unknown")
        params: Json = orjson.loads(found.body)
        given: Any = params.pop("input", None)
        conversation = [{"role": "user", "content": given}] if isinstance(given, str) else items(given)
        age_s = round(self._clock() - found.at, 3)
        return {"input": conversation, "params": params, "start": found.start, "turn": found.turn, "age_s": age_s}


MAX_ENDPOINTS = 4096
"""Number of endpoints whose state is kept. The least recently used one is dropped; it is created again if needed."""
SHORTEST_SECRET = 8
"""Shorter keys are placeholders such as `EMPTY`, which a response may contain by chance."""
_RETRY_SETTINGS = ("request_timeout_s", "total_timeout_s", "max_attempts", "retry_timeouts", "retry_pause_s")
_ABSENT = (404, 405, 501)


@dataclass(slots=True, eq=False)
class _Endpoint:
    upstream: Upstream
    model: str
    key: bytes
    has_chat: bool = True


class EpisodePolicies:
    def __init__(self, settings: ServerSettings, context: Context, models: Callable[[], list[str]]) -> None:
        """`models` returns the server's own model names; the first is used if an episode gives none."""
        self._context = context
        self._models = models
        self._retries = {
            name: getattr(settings, name) for name in _RETRY_SETTINGS if isinstance(settings, CallSettings)
        }
        dialect = getattr(settings, "dialect", Dialect())
        # The endpoint records the tokens itself, so they are not sent back to it.
        self._dialect: Dialect = dataclasses.replace(dialect, send_token_ids=False)
        self._endpoints: OrderedDict[PolicyEndpoint, _Endpoint] = OrderedDict()

    async def respond(self, call: RawRequest) -> RawResponse:
        """Create a Response (OpenAI's Responses API) with the endpoint of the agent's episode."""
        return await self.create(call.json(), call)

    async def create(self, request: Json, call: RawRequest) -> RawResponse:
        endpoint = self._endpoint(unsealed(call.header(POLICY_HEADER.encode()), self._context.keys.secret))
        conversion.check_responses_request(request)
        request_context = RequestContext.of(call, request.get("prompt_cache_key"))
        sent = _without_stream(dict(request))
        if isinstance(given := request.get("input"), list):
            sendable = sendable_items(given, offered(request.get("tools")))
            sent["input"] = [
                {key: value for key, value in item.items() if key not in TOKEN_FIELDS}
                if isinstance(item, dict)
                else item
                for item in sendable
            ]
        return request_context.answered(
            await self._answer(endpoint, {**sent, "model": endpoint.model}, request_context)
        )

    async def _answer(self, endpoint: _Endpoint, request: Json, request_context: RequestContext) -> bytes:
        if endpoint.has_chat:
            try:
                return await self._chat(endpoint, request, request_context)
            except Failure as failure:
                if failure.problem.upstream_status not in _ABSENT:
                    raise
                absent = failure
            try:
                body = await self._responses(endpoint, request, request_context)
            except Failure as failure:
                raise absent from failure
            endpoint.has_chat = False
            return body
        return await self._responses(endpoint, request, request_context)

    async def _chat(self, endpoint: _Endpoint, request: Json, request_context: RequestContext) -> bytes:
        def read(answer: bytes) -> bytes:
            completion = json_object(_without_key(answer, endpoint.key))
            return conversion.encoded_response(completion, request, self._dialect)

        body = encode_request(conversion.request_to_chat(request, self._dialect))
        return await endpoint.upstream.post("/chat/completions", body, read, request_context)

    async def _responses(self, endpoint: _Endpoint, request: Json, request_context: RequestContext) -> bytes:
        def read(answer: bytes) -> bytes:
            return response_bytes(_without_key(answer, endpoint.key))

        return await endpoint.upstream.post("/responses", encode_request(request), read, request_context)

    def _endpoint(self, policy: PolicyEndpoint) -> _Endpoint:
        if (found := self._endpoints.get(policy)) is not None:
            self._endpoints.move_to_end(policy)
            return found
        model = policy.model or next(iter(self._models()), "")
        settings = CallSettings(model=model, **self._retries)
        upstream = Upstream(
            Replicas(policy.base_urls), settings, SecretStr(policy.api_key), self._context.external_transport
        )
        key = policy.api_key.encode() if len(policy.api_key) >= SHORTEST_SECRET else b""
        self._endpoints[policy] = made = _Endpoint(upstream, model, key)
        if len(self._endpoints) > MAX_ENDPOINTS:
            self._endpoints.popitem(last=False)
        return made


def _without_key(body: bytes, key: bytes) -> bytes:
    """Return the body without the API key, which an endpoint that echoes its request would add to the rollout."""
    return body.replace(key, REDACTED.encode()) if key else body
