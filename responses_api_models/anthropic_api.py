"""Serves Anthropic's Messages API through the `responses` and `stream_responses` of any model server.

    system                            ->  instructions
    text block                        ->  message with an input_text or output_text part
    image block                       ->  message with an input_image part, or such a part of a tool's output
    thinking block                    ->  {"type": "reasoning", "summary": [...]}
    tool_use block                    ->  {"type": "function_call", "call_id", "name", "arguments"}
    tool_result block                 ->  {"type": "function_call_output", "call_id", "output"}

Documents, the provider's own tools and an unfinished answer of the assistant are refused. Fields that neither API
defines are copied unchanged.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, cast

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import TOKEN_FIELDS, Json, mapping
from rollyard.responses_api_models.conversion import check_depth, check_responses_request, unconvertible
from rollyard.responses_api_models.upstream.sse import data_of, payload_of, split_events
from rollyard.services.http.request import PROBLEM_TYPE, RawRequest, RawResponse
from rollyard.services.responses.response_validity import check_response, malformed
from rollyard.services.responses.stream_events import SSE, STREAM_HEADERS

Answer = Json | bytes | RawResponse
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"


class AnthropicApi:
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
            streamed = await self._stream(request, call)
            if streamed.status >= 400:
                return streamed
            events = self._converted(streamed, MessageEvents(stop))
            others = tuple(header for header in streamed.headers if header not in STREAM_HEADERS)
            return RawResponse(stream=events, content_type=SSE, headers=(*STREAM_HEADERS, *others))
        request.pop("stream", None)
        answer = await self._responses(request, call)
        headers: tuple[tuple[bytes, bytes], ...] = ()
        if isinstance(answer, RawResponse):
            if answer.status >= 400:
                return answer
            headers, answer = answer.headers, answer.body
        response = orjson.loads(answer) if isinstance(answer, bytes) else answer
        message = response_to_message(response, stop)
        try:
            return RawResponse(orjson.dumps(message), headers=headers)
        except TypeError as error:
            raise malformed(f"cannot be encoded as JSON ({error})", sorted(message)) from error

    async def count_tokens(self, call: RawRequest) -> bytes:
        """Return the number of tokens of a prompt (Anthropic's token counting), as `{"input_tokens": 42}`."""
        body = call.json()
        request = prompt_of(body)
        if "chat_template_kwargs" in body:
            request["chat_template_kwargs"] = body["chat_template_kwargs"]
        check_responses_request(request)
        check_depth(request, "the request")
        return orjson.dumps({"input_tokens": await self._count(request, call)})

    async def _converted(self, answer: RawResponse, events: MessageEvents) -> AsyncIterator[bytes]:
        async def whole() -> AsyncIterator[bytes]:
            yield answer.body

        source = answer.stream if answer.stream is not None else whole()
        try:
            async with contextlib.aclosing(split_events(source)) as pieces:
                async for piece in pieces:
                    if (data := data_of(piece)) and (known := events.event(payload_of(piece, data))):
                        yield known
                    if events.ended:
                        return
            raise Failure(FailureKind.CONNECTION_LOST, "the stream ended before its response was complete")
        except Failure as failure:
            yield events.broken_off(failure.problem.status, failure.problem.detail)


INVALID_ARGUMENTS = "invalid_arguments"
"""Only key of a tool_use block's `input` if the model's arguments are not a JSON object; its value is their text."""
_CONVERTED = frozenset(
    {"messages", "system", "max_tokens", "tools", "tool_choice", "stop_sequences", "metadata", "output_config"}
    | {"output_format"}
)
_WITHOUT_EFFECT = frozenset(
    {"thinking", "cache_control", "service_tier", "inference_geo", "speed", "diagnostics", "user_profile_id"}
    | {"workspace_id"}
)
"""Fields about billing, caching and routing, and `thinking`: whether the model thinks is a setting of the engine."""
_REFUSED = ("container", "mcp_servers", "context_management", "fallbacks")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_BLOCKS = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
"""Blocks by role. Claude Code sends what it tells the model during a conversation as messages of the system."""
_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "image": {"source": dict},
    "url": {"url": str},
    "base64": {"media_type": str, "data": str},
    "tool_result": {"tool_use_id": str},
    "tool_use": {"id": str, "name": str, "input": dict},
    "custom": {"name": str, "input_schema": dict},
    "tool": {"name": str},
}


def messages_to_responses(request: Json) -> Json:
    """Convert a create request. Raises Failure bad_request if it is invalid or cannot be converted.

    The stop sequences stay in the request as `stop`.
    """
    for name in _REFUSED:
        if request.get(name):
            raise unconvertible(name, "found a feature of Anthropic's servers, which this server does not have")
    dropped = _CONVERTED | _WITHOUT_EFFECT
    body = {key: value for key, value in request.items() if key not in dropped and value is not None}
    limit = request.get("max_tokens")
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise unconvertible("max_tokens", f"found {limit!r:.100}; expected an integer of at least 1")
    body |= {**prompt_of(request), "max_output_tokens": limit}
    if stop := request.get("stop_sequences"):
        if not isinstance(stop, list) or not all(isinstance(text, str) and text for text in stop):
            raise unconvertible("stop_sequences", f"found {stop!r:.100}; expected a list of texts that are not empty")
        body["stop"] = stop
    metadata = {key: value for key, value in mapping(request.get("metadata")).items() if value is not None}
    if user := metadata.pop("user_id", None):
        body["user"] = user
    if metadata:
        body["metadata"] = metadata
    config = mapping(request.get("output_config"))
    if effort := config.get("effort"):
        body["reasoning"] = {"effort": effort}
    if wanted := mapping(config.get("format") or request.get("output_format")):
        body["text"] = {"format": {"name": "output", "strict": True, **wanted}}
    return body


def prompt_of(request: Json) -> Json:
    """Convert what becomes the prompt: `system`, `messages`, `tools` and `tool_choice`.

    Raises Failure bad_request if it is invalid or cannot be converted.
    """
    body: Json = {"input": _items(request.get("messages"))}
    if system := _text(_blocks(request.get("system"), "system", "text")):
        body["instructions"] = system
    for tool, _ in _blocks(request.get("tools"), "tools", "custom"):
        optional = {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
        function = {"type": "function", "name": tool["name"], "parameters": tool["input_schema"], **optional}
        body.setdefault("tools", []).append(function)
    if (choice := request.get("tool_choice")) is not None:
        kind = _checked(choice, "tool_choice", *_CHOICES, "tool")["type"]
        body["tool_choice"] = _CHOICES.get(kind) or {"type": "function", "name": choice["name"]}
        if choice.get("disable_parallel_tool_use"):
            body["parallel_tool_calls"] = False
    return body


def _items(messages: Any) -> list[Json]:
    if not isinstance(messages, list) or not messages:
        raise unconvertible("messages", f"found {messages!r:.100}; expected a list with at least one message")
    items: list[Json] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role, content = mapping(message).get("role"), mapping(message).get("content")
        if not isinstance(role, str) or role not in _BLOCKS or content is None:
            expected = "the role user, assistant or system, and content"
            raise unconvertible(where, f"found {message!r:.100}; expected {expected}")
        items += [_item(block, role, place) for block, place in _blocks(content, f"{where}.content", *_BLOCKS[role])]
    if role == "assistant":
        raise unconvertible(
            where,
            "found an answer of the assistant as the last message; this server cannot continue an unfinished answer: "
            "end with a message of the user",
        )
    return items


def _item(block: Json, role: str, where: str) -> Json:
    kind = block["type"]
    if kind == "thinking":
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": str(block.get("thinking") or "")}]}
    if kind == "tool_use":
        check_depth(block["input"], f"{where}.input")
        invalid = block["input"].get(INVALID_ARGUMENTS) if len(block["input"]) == 1 else None
        arguments = invalid if isinstance(invalid, str) else orjson.dumps(block["input"]).decode()
        return {"type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": arguments}
    if kind == "tool_result":
        return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": _output(block, where)}
    part = {"type": "output_text", "text": block["text"]} if role == "assistant" else _part(block, where)
    return {"type": "message", "role": role, "content": [part]}


def _output(block: Json, where: str) -> str | list[Json]:
    parts = _blocks(block.get("content"), f"{where}.content", "text", "image")
    if any(part["type"] == "image" for part, _ in parts):
        error = [{"type": "input_text", "text": "error:"}] if block.get("is_error") else []
        return [*error, *(_part(part, place) for part, place in parts)]
    return orjson.dumps({"error": _text(parts)}).decode() if block.get("is_error") else _text(parts)


def _part(block: Json, where: str) -> Json:
    if block["type"] == "text":
        return {"type": "input_text", "text": block["text"]}
    source = _checked(block["source"], f"{where}.source", "url", "base64")
    url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _text(blocks: list[tuple[Json, str]]) -> str:
    return "\n".join([block["text"] for block, _ in blocks])


def _blocks(content: Any, where: str, *kinds: str) -> list[tuple[Json, str]]:
    """Return the objects in a list, each with its place; a text is one block. Raises Failure bad_request."""
    if content is None:
        return []
    if isinstance(content, str) and "text" in kinds:
        return [({"type": "text", "text": content}, where)]
    if not isinstance(content, list):
        raise unconvertible(where, f"found {content!r:.100}; expected a list")
    places = [f"{where}[{index}]" for index in range(len(content))]
    return [(_checked(block, place, *kinds), place) for block, place in zip(content, places, strict=True)]


def _checked(value: Any, where: str, *kinds: str) -> Json:
    """Return an object of one of `kinds`, of which a tool's type is optional. Raises Failure bad_request."""
    kind = value.get("type") or ("custom" if kinds == ("custom",) else None) if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise unconvertible(where, f"found {value!r:.100}; only the types {', '.join(kinds)} are supported here")
    for name, expected in _FIELDS.get(kind, {}).items():
        found = value.get(name)
        if not isinstance(found, expected) or (found == "" and name != "text"):
            names = "text" if expected is str else "an object"
            raise unconvertible(f"{where}.{name}", f"found {found!r:.100}; expected {names}")
    return cast(Json, value)


STOPPED_BY = "stop_sequence"
"""Field of a Response with the stop sequence that ended it, if the engine reports it."""


def response_to_message(response: Json, stop: StopSequences) -> Json:
    """Convert a complete Response.

    `stop`: the request's stop sequences. If the engine ignored them, the message ends at the first one.
    """
    check_response(response)
    try:
        content = _content(response["output"], stop)
        message = {**empty_message(response), "content": content}
        message |= ending(response, content, stop)
        message["usage"] = usage_of(response)
        message |= {key: item[key] for item in response["output"][-1:] for key in TOKEN_FIELDS if key in item}
        return message
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise malformed(f"has an unexpected structure ({type(error).__name__}: {error})", response) from error


def empty_message(response: Json) -> Json:
    serial = str(response.get("id") or uuid.uuid4().hex).removeprefix("resp_")
    return {
        "id": f"msg_{serial}",
        "type": "message",
        "role": "assistant",
        "model": response.get("model") or "",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_of({}),
    }


def ending(response: Json, content: list[Json], stop: StopSequences) -> Json:
    reported = response.get(STOPPED_BY)
    matched = stop.matched or (reported if isinstance(reported, str) and reported in stop.sequences else None)
    if matched is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    reason = (response.get("incomplete_details") or {}).get("reason")
    if reason == "max_output_tokens":
        found = "max_tokens"
    elif reason == "content_filter" or any(
        part.get("type") == "refusal"
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    ):
        found = "refusal"
    else:
        found = "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"
    return {"stop_reason": found, "stop_sequence": None}


def usage_of(response: Json) -> Json:
    """Return the usage. Tokens that the engine read from its cache are not part of `input_tokens`."""
    usage = response.get("usage") or {}
    cached = (usage.get("input_tokens_details") or {}).get("cached_tokens") or 0
    return {
        "input_tokens": max((usage.get("input_tokens") or 0) - cached, 0),
        "output_tokens": usage.get("output_tokens") or 0,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


def tool_use(item: Json) -> Json:
    """Convert a tool call to a block. Arguments that are not a JSON object, or nested too deeply to be written as a
    part of the message, are kept as text under one key.
    """
    text = item["arguments"]
    try:
        arguments: Any = orjson.loads(text) if text.strip() else {}
        check_depth(arguments, "arguments")
    except (orjson.JSONDecodeError, Failure):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {INVALID_ARGUMENTS: text}
    return {"type": "tool_use", "id": item["call_id"], "name": item["name"], "input": arguments}


def _content(output: list[Json], stop: StopSequences) -> list[Json]:
    content: list[Json] = []
    for item in output:
        kind = item["type"]
        if kind == "reasoning":
            parts = [*(item.get("summary") or ()), *(item.get("content") or ())]
            content += [{"type": "thinking", "thinking": part["text"], "signature": ""} for part in parts]
        elif kind == "function_call":
            content.append(tool_use(item))
        elif kind == "message":
            for part in item["content"]:
                text = part.get("text") if part.get("text") is not None else part["refusal"]
                text = stop.feed(text) + ("" if stop.matched else stop.rest())
                if text or not stop.matched:
                    content.append({"type": "text", "text": text, "citations": None})
                if stop.matched:
                    return content
    return content


class StopSequences:
    """Returns the text up to the first stop sequence. Text that may be the start of a sequence is held back."""

    def __init__(self, sequences: Sequence[str]) -> None:
        self.sequences = sequences
        self.matched: str | None = None
        self._held = ""

    def feed(self, text: str) -> str:
        if self.matched is not None:
            return ""
        text, self._held = self._held + text, ""
        found = [(at + len(one), at, one) for one in self.sequences if (at := text.find(one)) >= 0]
        if found:
            # The one that is complete first, so that the result does not depend on how the text is divided.
            _, at, self.matched = min(found)
            return text[:at]
        # The longest end of the text with which a sequence begins.
        starts = {one[:size] for one in self.sequences for size in range(1, min(len(one) - 1, len(text)) + 1)}
        if keep := max((len(start) for start in starts if text.endswith(start)), default=0):
            text, self._held = text[:-keep], text[-keep:]
        return text

    def rest(self) -> str:
        held, self._held = self._held, ""
        return held


_ADDED = frozenset({"response.content_part.added", "response.reasoning_summary_part.added"})
_DONE = frozenset({"response.content_part.done", "response.reasoning_summary_part.done"})
_ENDS = frozenset({"response.completed", "response.incomplete"})
_THINKING = frozenset({"summary_text", "reasoning_text"})
_Part = tuple[object, object]


class MessageEvents:
    """Converts a stream of Responses events to a stream of Anthropic's Messages API, without I/O.

        message_start
        for each block:  content_block_start, content_block_delta, content_block_stop
        message_delta (stop_reason, usage), message_stop | error

    Each part of a text or reasoning item becomes a block, and so does each tool call. A tool call is sent in one delta,
    once it is complete, because its arguments must be valid JSON.
    """

    def __init__(self, stop: StopSequences) -> None:
        self._stop = stop
        self._content: list[Json] = []
        self._open: dict[_Part, int] = {}
        self.ended = False
        """Whether the stream is complete. It can end before the Responses stream, because of a stop sequence."""
        self._response: Json = {}

    def event(self, event: Json) -> bytes:
        """Convert an event. Raises Failure if it has an unexpected structure or if the response is invalid."""
        try:
            return b"".join(_encoded(one) for one in self._read(event))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise malformed(f"has a malformed event ({type(error).__name__}: {error})", event) from error

    def broken_off(self, status: int, message: str) -> bytes:
        self.ended = True
        return _encoded(error_body(status, message))

    def _read(self, event: Json) -> Iterator[Json]:
        kind = event["type"]
        if kind == "response.created":
            self._response = event["response"]
            yield {"type": "message_start", "message": empty_message(self._response)}
        elif kind in _ADDED:
            block: Json = {"type": "text", "text": "", "citations": None}
            if event["part"]["type"] in _THINKING:
                block = {"type": "thinking", "thinking": "", "signature": ""}
            self._open[_part_of(event)] = index = len(self._content)
            self._content.append(block)
            yield {"type": "content_block_start", "index": index, "content_block": block}
        elif kind.endswith(".delta") and (part := _part_of(event)) in self._open:
            yield from self._delta(self._open[part], event["delta"])
        elif kind in _DONE and (part := _part_of(event)) in self._open:
            yield from self._end(part)
        elif kind == "response.output_item.done" and event["item"]["type"] == "function_call":
            yield from self._tool_use(event["item"])
        elif kind in _ENDS:
            yield from self._finish(event["response"])
        elif kind == "error":
            self.ended = True
            status = mapping(event.get("error")).get("status")
            message = str(event.get("message") or "the response was interrupted")
            yield error_body(status if isinstance(status, int) else 500, message)

    def _delta(self, index: int, text: str) -> Iterator[Json]:
        thinks = self._content[index]["type"] == "thinking"
        shown = text if thinks else self._stop.feed(text)
        if shown:
            delta: Json = {"type": "thinking_delta", "thinking": shown} if thinks else _text_delta(shown)
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        if self._stop.matched is not None:
            yield from self._finish({**self._response, "output": []})

    def _end(self, part: _Part) -> Iterator[Json]:
        index = self._open.pop(part)
        if self._content[index]["type"] == "text" and (held := self._stop.rest()):
            yield {"type": "content_block_delta", "index": index, "delta": _text_delta(held)}
        yield {"type": "content_block_stop", "index": index}

    def _tool_use(self, item: Json) -> Iterator[Json]:
        block, index = tool_use(item), len(self._content)
        self._content.append(block)
        yield {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}
        text = orjson.dumps(block["input"]).decode()
        delta = {"type": "input_json_delta", "partial_json": text}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}

    def _finish(self, response: Json) -> Iterator[Json]:
        if self._stop.matched is None:
            check_response(response)
        for part in list(self._open):
            yield from self._end(part)
        self.ended = True
        tokens = {key: item[key] for item in response["output"][-1:] for key in TOKEN_FIELDS if key in item}
        delta = {**ending(response, self._content, self._stop), **tokens}
        yield {"type": "message_delta", "delta": delta, "usage": usage_of(response)}
        yield {"type": "message_stop"}


def _text_delta(text: str) -> Json:
    return {"type": "text_delta", "text": text}


def _part_of(event: Json) -> _Part:
    number = event.get("content_index")
    return event.get("output_index"), number if number is not None else ("summary", event.get("summary_index"))


def _encoded(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(status: int, message: str, problem: Json | None = None) -> Json:
    """Return the body of an error response. `problem`: Rollyard's description of the same error."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 and status != 499 else "api_error")
    error: Json = {"type": kind, "message": message}
    return {"type": "error", "error": {**error, "problem": problem} if problem else error}


def as_anthropic_error(response: RawResponse) -> RawResponse:
    described: Json = {}
    with contextlib.suppress(orjson.JSONDecodeError):
        described = mapping(orjson.loads(response.body))
    nested = described.get("error")
    message = nested.get("message") if isinstance(nested, dict) else described.get("detail")
    shown = message if isinstance(message, str) else response.body[:300].decode("utf-8", "replace")
    problem = described if response.content_type == PROBLEM_TYPE.encode() else None
    return RawResponse(
        orjson.dumps(error_body(response.status, shown, problem)), response.status, headers=response.headers
    )
