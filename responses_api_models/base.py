"""ModelServer: a model behind OpenAI's API.

    class Echo(ModelServer[EchoSettings]):
        async def responses(self, request: Json, call: Call) -> Json: ...

    server = Echo

The type argument names the settings, which are at `self.settings`.
What you must write: `responses`, a Responses create request in, a whole Response object out (plain dicts).
What you may write: `chat` (else Chat Completions is converted to `responses` and back), `models`, and, where answers
arrive bit by bit, `stream_responses` and `stream_chat` (else a stream is made of the finished answer).
What is done for you: the routes, both APIs, errors as problems.
The caller hanging up cancels your coroutine or closes your stream, so that an engine behind it can abort.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import orjson

from rollyard.responses_api_models.convert import conversion
from rollyard.responses_api_models.request_validation import check_chat_request, check_responses_request
from rollyard.responses_api_models.streaming import chunks
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.responses import stream_events
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings, settings_argument
from rollyard.services.types import Json

S = TypeVar("S", bound=ServerSettings)


class ModelServer(Server, Generic[S]):
    """Base of every model server."""

    settings: S

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Settings" not in cls.__dict__:
            cls.Settings = settings_argument(cls, ServerSettings) or cls.Settings

    def __init__(self, settings: S, context: Context) -> None:
        super().__init__(settings, context)
        self.route("/v1/responses", self.__serve_responses, cancellable=True)
        self.route("/v1/chat/completions", self.__serve_chat, cancellable=True)
        self.app.get("/v1/models")(self.__list_models)
        self.app.get("/v1/models/{name:path}")(self.__retrieve_model)

    async def responses(self, request: Json, call: RawRequest) -> Json | bytes | RawResponse:
        """You write this: the whole Response object for a create request, which says nothing of streams.

        Return bytes or a Reply where the answer passes through as it came.
        """
        raise NotImplementedError

    async def chat(self, request: Json, call: RawRequest) -> Json | bytes | RawResponse:
        """The whole Chat Completion for a create request."""
        answer = await self.responses(conversion.chat_request_to_responses(request), call)
        if isinstance(answer, RawResponse):
            if answer.status >= 400:
                return answer
            answer = answer.body
        response: Json = orjson.loads(answer) if isinstance(answer, bytes) else answer
        return conversion.response_to_chat(response)

    def models(self) -> list[str]:
        """Names served at `GET /v1/models`."""
        return [self.name]

    async def stream_responses(self, request: Json, call: RawRequest) -> RawResponse:
        """The events for a create request that asks for a stream; its `stream` and `stream_options` are still there."""
        answer = await self.responses(_without_stream(request), call)
        return _streamed(answer, stream_events.whole)

    async def stream_chat(self, request: Json, call: RawRequest) -> RawResponse:
        """The chunks for a chat create request that asks for a stream."""
        with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        answer = await self.chat(_without_stream(request), call)
        return _streamed(answer, lambda completion: chunks.chat_chunks(completion, with_usage))

    async def __serve_responses(self, call: RawRequest) -> bytes | RawResponse:
        """OpenAI Responses: create. With `"stream": true` the answer is a stream of events."""
        request = call.json()
        check_responses_request(request)
        if request.get("stream"):
            return await self.stream_responses(request, call)
        return _sent(await self.responses(_without_stream(request), call))

    async def __serve_chat(self, call: RawRequest) -> bytes | RawResponse:
        """OpenAI Chat Completions: create. With `"stream": true` the answer is a stream of chunks."""
        request = call.json()
        check_chat_request(request)
        if request.get("stream"):
            return await self.stream_chat(request, call)
        return _sent(await self.chat(_without_stream(request), call))

    async def __list_models(self) -> Json:
        """The models served here, in OpenAI's list format."""
        return {"object": "list", "data": [self.__entry(name) for name in self.models()]}

    async def __retrieve_model(self, name: str) -> Json:
        """One model."""
        if name not in (known := self.models()):
            told = f"no model {name!r} here (there is: {', '.join(known)})"
            raise Failure(FailureKind.BAD_REQUEST, told, status=404, code="model_not_found")
        return self.__entry(name)

    def __entry(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": int(time.time()), "owned_by": self.name}


def _without_stream(request: Json) -> Json:
    request.pop("stream", None)
    request.pop("stream_options", None)
    return request


def _sent(answer: Json | bytes | RawResponse) -> bytes | RawResponse:
    return orjson.dumps(answer) if isinstance(answer, dict) else answer


def _streamed(answer: Json | bytes | RawResponse, events: Callable[[Json], bytes]) -> RawResponse:
    """The finished answer as one body of server-sent events, its headers kept; an error answer stays what it is."""
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
