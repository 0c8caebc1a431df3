"""Serves Anthropic's Messages API through the `responses` and `stream_responses` of any model server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.convert.anthropic import (
    StopSequences,
    messages_to_responses,
    prompt_of,
    response_to_message,
)
from rollyard.responses_api_models.request_validation import check_responses_request
from rollyard.responses_api_models.streaming.anthropic_events import MessageEvents
from rollyard.responses_api_models.upstream.sse import data_of, split_events
from rollyard.services.http.request import RawRequest, RawResponse
from rollyard.services.responses.response_validity import malformed
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS

Answer = Json | bytes | RawResponse
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


class AnthropicApi:
    """The two endpoints of one model server."""

    def __init__(
        self,
        responses: Callable[[Json, RawRequest], Awaitable[Answer]],
        stream: Callable[[Json, RawRequest], Awaitable[RawResponse]],
        count: Callable[[Json, RawRequest], Awaitable[int]],
        *,
        passes_stop: bool,
    ) -> None:
        """`passes_stop`: whether the engine supports `stop`; otherwise the message is cut at the first sequence."""
        self._responses = responses
        self._stream = stream
        self._count = count
        self._passes_stop = passes_stop

    async def create(self, call: RawRequest) -> bytes | RawResponse:
        """Create a message (Anthropic's Messages API). With `"stream": true`, return it as a stream of events."""
        request = messages_to_responses(call.json())
        check_responses_request(request)
        stop = StopSequences(request.get("stop") or ())
        if not self._passes_stop:
            request.pop("stop", None)
        if request.get("stream"):
            return self._streamed(await self._stream(request, call), stop)
        request.pop("stream", None)
        answer = await self._responses(request, call)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if isinstance(answer, RawResponse):
            if answer.status >= 400:
                return answer
            headers, answer = answer.headers, answer.body
        response = orjson.loads(answer) if isinstance(answer, bytes) else answer
        return RawResponse(_dumped(response_to_message(response, stop)), headers=headers)

    async def count_tokens(self, call: RawRequest) -> bytes:
        """Return the number of tokens of a prompt (Anthropic's token counting), as `{"input_tokens": 42}`."""
        body = call.json()
        request = {**prompt_of(body), **{key: body[key] for key in ("chat_template_kwargs",) if key in body}}
        check_responses_request(request)
        return orjson.dumps({"input_tokens": await self._count(request, call)})

    def _streamed(self, answer: RawResponse, stop: StopSequences) -> RawResponse:
        if answer.status >= 400:
            return answer
        source = answer.stream if answer.stream is not None else _one(answer.body)
        events = self._converted(source, MessageEvents(stop))
        headers = tuple(header for header in answer.headers if header not in STREAM_HEADERS)
        return RawResponse(stream=events, content_type=SSE, headers=(*STREAM_HEADERS, *headers))

    async def _converted(self, source: AsyncIterator[bytes], events: MessageEvents) -> AsyncIterator[bytes]:
        try:
            async with contextlib.aclosing(split_events(source)) as pieces:
                async for piece in pieces:
                    if (data := data_of(piece)) and (known := events.event(_object(data))):
                        yield known
                    if events.ended:
                        return
            raise Failure(FailureKind.CONNECTION_LOST, "the stream ended before its response was complete")
        except Failure as failure:
            yield events.broken_off(failure.problem.status, failure.problem.detail)


async def _one(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _object(data: bytes) -> Json:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise malformed(f"contains an event that is not JSON ({error})", data) from error
    if not isinstance(value, dict):
        raise malformed("contains an event that is not an object", data)
    return value


def _dumped(message: Json) -> bytes:
    try:
        return orjson.dumps(message)
    except TypeError as error:
        raise malformed(f"cannot be encoded as JSON ({error})", sorted(message)) from error
