"""Forwards or converts streams event by event.

A stream is complete if it contains its final event: `[DONE]` in Chat Completions, a terminal event in Responses. If a
stream ends without it, an error event is added, so clients do not mistake it for a complete response.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json, Problem, mapping
from rollyard.responses_api_models.conversion import (
    Dialect,
    ThinkTags,
    annotation,
    call_item,
    finish_last,
    logprobs_of_text,
    response_around,
    stop_sequence_of,
    text_logprobs,
    text_of,
    wants_logprobs,
)
from rollyard.responses_api_models.upstream.sse import DONE, DONE_EVENT, data_of, error_of, payload_of
from rollyard.services.http.request import RawRequest, to_problem
from rollyard.services.responses import stream_events
from rollyard.services.responses.response_validity import (
    calls_of,
    check_error,
    check_finish,
    ends_with_calls,
    lost_call,
    malformed,
    normalize_calls,
    read_arguments,
    read_name,
)
from rollyard.services.responses.stream_events import TEXT_FIELD, Event

log = logging.getLogger(__name__)
Reporter = Callable[[Failure], Problem]
_LAST = ("response.completed", "response.incomplete", "response.failed", "error")
_CUT_OFF = (FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT)
"""What happens to a stream that is not closed properly. The response may nevertheless be complete."""


def event_reporter(server: str, call: RawRequest) -> Reporter:

    def report(failure: Failure) -> Problem:
        log.warning("%s%s: a stream was interrupted: %s", server, call.path, failure)
        return to_problem(failure, server, call.path)

    return report


async def chat(events: AsyncIterator[bytes], report: Reporter, requested: int = 1) -> AsyncIterator[bytes]:
    """Forward a stream of chat chunks; if it is interrupted or loses a tool call, end it with an error event.

    It is complete when every choice has a finish_reason, also if the engine then closes it without `[DONE]`.
    `requested`: the number of choices that the request asked for.
    """
    choices = _Choices(requested)
    try:
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    data = data_of(event)
                    if data == DONE:
                        choices.ended = True
                        break
                    yield choices.read(event, data) if data else event
        except Failure as failure:
            if failure.kind not in _CUT_OFF or not choices.complete:
                raise
        if not choices.complete:
            raise _stream_ended_early()
        yield DONE_EVENT
    except Failure as failure:
        yield b"data: %b\n\n" % orjson.dumps({"error": report(failure).model_dump(mode="json")})


class _Choices:
    def __init__(self, requested: int) -> None:
        self._requested = requested
        self._finished: dict[str, bool] = {}
        self._with_calls: set[str] = set()
        self.ended = False
        """Whether the engine sent `[DONE]`. It ends streams of an engine's own format, which have no choices."""

    @property
    def complete(self) -> bool:
        return all(self._finished.values()) if self._finished else self.ended

    def read(self, event: bytes, data: bytes) -> bytes:
        """Return the event of a chunk, with arguments of tool calls that are text.

        Raises Failure if the engine aborted a choice, or if a call is in a choice that was not requested or missing.
        """
        chunk, changed = _payload(event, data), False
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                raise malformed("has a malformed chunk", chunk)
            check_error(choice)
            reason, delta = choice.get("finish_reason"), mapping(choice.get("delta"))
            check_finish(reason)
            index = str(choice.get("index") or 0)
            self._finished[index] = bool(reason) or self._finished.get(index, False)
            changed = normalize_calls(delta, is_delta=True) or changed
            if calls_of(delta):
                if index != "0" and self._requested == 1:
                    raise lost_call(None, choice)
                self._with_calls.add(index)
            if ends_with_calls(reason) and index not in self._with_calls:
                raise lost_call(reason, choice)
        return b"data: %b\n\n" % orjson.dumps(chunk) if changed else event


async def responses(events: AsyncIterator[bytes], report: Reporter) -> AsyncIterator[bytes]:
    first: Json = {}
    last: Json = {}
    complete = False
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                data = data_of(event)
                if data == DONE and not complete:
                    break  # clients would read no further
                if data and not complete:
                    payload = payload_of(event, data)
                    complete = payload.get("type") in _LAST
                    if not complete and b"error" in event:
                        _check_error(event, payload)
                    first, last = first or payload, payload
                yield event
        if not complete:
            raise _stream_ended_early()
    except Failure as failure:
        if not complete:
            number = last.get("sequence_number")
            final = stream_events.broken_off(first.get("response"), report(failure))
            yield stream_events.encoded(final, number + 1 if isinstance(number, int) else 0)


async def converted(events: AsyncIterator[bytes], converter: ResponseEvents, report: Reporter) -> AsyncIterator[bytes]:
    try:
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    data = data_of(event)
                    if data == DONE:
                        break
                    if data and (known := converter.chunk(_payload(event, data))):
                        yield known
        except Failure as failure:
            if failure.kind not in _CUT_OFF or not converter.finished:
                raise
        yield converter.end()
    except Failure as failure:
        yield converter.broken_off(report(failure))


def _payload(event: bytes, data: bytes) -> Json:
    """Parse the data of an event. Raises Failure if it is not a JSON object, or reports an error."""
    payload = payload_of(event, data)
    if b"error" in event:
        _check_error(event, payload)
    return payload


def _check_error(event: bytes, payload: Json) -> None:
    if error := error_of(event, payload):
        detail = f"the engine aborted its response: {error.get('message') or error}"
        raise Failure(FailureKind.UPSTREAM_ERROR, detail[:500])


def _stream_ended_early() -> Failure:
    return Failure(FailureKind.CONNECTION_LOST, "the engine's stream ended before its response was complete")


_STANDARD_KEYS = frozenset(
    {"role", "content", "reasoning", "reasoning_content", "refusal", "annotations", "tool_calls", "function_call"}
)


class ResponseEvents:
    """Converts a chat engine's chunks to Responses stream events, without I/O.

    Together, the events form the Response that `chat_to_response` would return for the complete completion. At any
    time, either one text item or any number of tool calls are open, and the deltas of open calls can be interleaved.
    Text after a tool call starts a new item.
    """

    def __init__(self, request: Json, dialect: Dialect, on_response: Callable[[Json], object] = bool) -> None:
        self._request = request
        self._on_response = on_response
        self._tags = ThinkTags() if dialect.think_tags else None
        self._with_logprobs = wants_logprobs(request)
        self._answer: Json = {}
        self._extra: Json = {}
        self._output: list[Json] = []
        self._open: list[StreamedText] | list[StreamedToolCall] = []
        self._call_ids: set[str] = set()
        self._logprobs: list[Json] = []
        """Logprobs of tokens whose text has not been sent yet."""
        self._annotations: list[Json] = []
        self._finish_reason: str | None = None
        self._sent = 0

    def chunk(self, chunk: Json) -> bytes:
        return self._encoded(self._read(chunk), chunk)

    @property
    def finished(self) -> bool:
        return self._finish_reason is not None

    def end(self) -> bytes:
        """Return the final events. Raises Failure connection_lost if the response is incomplete."""
        if self._finish_reason is None:
            raise _stream_ended_early()
        return self._encoded(self._finish(), self._answer)

    def broken_off(self, problem: Problem) -> bytes:
        self._answer.pop("usage", None)  # it may be the malformed part
        unfinished = self._response() if self._answer else None
        return self._encoded(stream_events.broken_off(unfinished, problem), self._answer)

    def _encoded(self, events: Iterator[Event], read: Json) -> bytes:
        try:
            known = list(events)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise malformed(f"has a malformed chunk ({type(error).__name__}: {error})", read) from error
        self._sent += len(known)
        return stream_events.encoded(known, self._sent - len(known))

    def _read(self, chunk: Json) -> Iterator[Event]:
        check_error(chunk)
        fields = {key: value for key, value in chunk.items() if key != "choices" and value is not None}
        if self._answer:
            self._answer.update({key: value for key, value in fields.items() if key not in ("id", "created")})
        else:
            serial = str(fields.get("id") or uuid.uuid4().hex).removeprefix("chatcmpl-")
            self._answer = {"created": int(time.time()), **fields, "id": serial}
            yield from stream_events.began(self._response())
        for choice in chunk.get("choices") or ():
            if choice.get("index"):  # a Response has only one choice
                if calls_of(choice.get("delta") or {}):
                    raise lost_call(None, choice)
                continue
            check_error(choice)
            yield from self._delta(choice.get("delta") or {}, choice)
            if reason := choice.get("finish_reason"):
                check_finish(reason)
                if ends_with_calls(reason) and not self._call_ids:
                    raise lost_call(reason, choice)
                self._finish_reason = reason
                self._answer.update(stop_sequence_of(choice))

    def _delta(self, delta: Json, choice: Json) -> Iterator[Event]:
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = text_of(delta.get("content"))
        if content and self._tags is not None:
            found, content = self._tags.split(content)
            reasoning += found
        if reasoning:
            yield from self._add_text("summary_text", reasoning)
        if self._with_logprobs:
            self._logprobs += text_logprobs(choice)
        self._annotations += [annotation(entry) for entry in delta.get("annotations") or ()]
        if content:
            yield from self._add_text("output_text", content, self._taken_logprobs(content))
        if refusal := delta.get("refusal"):
            yield from self._add_text("refusal", refusal)
        if self._annotations and self._open and isinstance(text := self._open[-1], StreamedText):
            self._annotations = text.annotate(self._annotations)
        for call in calls_of(delta):
            yield from self._call(call if isinstance(call, dict) else {"function": {"arguments": call}})
        for key in delta.keys() - _STANDARD_KEYS:
            self._extra[key] = _joined(self._extra.get(key), delta[key])

    def _add_text(self, kind: str, text: str, logprobs: list[Json] | None = None) -> Iterator[Event]:
        item_kind = "reasoning" if kind == "summary_text" else "message"
        growing = self._open[-1] if self._open else None
        if not isinstance(growing, StreamedText) or growing.kind != item_kind:
            yield from self._close()
            blank: Json = {"type": item_kind, "status": "completed"}
            blank |= {"summary": []} if item_kind == "reasoning" else {"role": "assistant", "content": []}
            growing = StreamedText({"id": self._id(item_kind), **blank}, len(self._output))
            self._open = [growing]
            yield stream_events.item_added(growing.item, growing.index)
        yield from growing.add(kind, text, logprobs or [])

    def _taken_logprobs(self, text: str) -> list[Json]:
        """Take the pending logprobs of the text. At the start of a message, some may be of the reasoning."""
        waiting, self._logprobs = self._logprobs, []
        continues = self._open and isinstance(self._open[-1], StreamedText) and self._open[-1].kind == "message"
        return waiting if continues else logprobs_of_text(waiting, text)

    def _call(self, call: Json) -> Iterator[Event]:
        open_calls = [one for one in self._open if isinstance(one, StreamedToolCall)]
        growing = next((one for one in reversed(open_calls) if one.continues_with(call)), None)
        if growing is None:
            if not open_calls:
                yield from self._close()
            index = len(self._output) + len(open_calls)
            growing = StreamedToolCall(call, index, self._id("function_call", len(open_calls)), self._call_ids)
            self._open = [*open_calls, growing]
            yield stream_events.item_added(growing.item, index)
        function = mapping(call.get("function"))
        arguments = function.get("arguments")
        yield from growing.add(read_name(function.get("name")), "" if arguments is None else read_arguments(arguments))

    def _close(self) -> Iterator[Event]:
        for growing in self._open:
            yield from growing.end()
            self._output.append(growing.item)
            yield stream_events.item_done(growing.item, growing.index)
        self._open = []

    def _finish(self) -> Iterator[Event]:
        reasoning, held = self._tags.rest() if self._tags is not None else ("", "")
        if reasoning:
            yield from self._add_text("summary_text", reasoning)
        if held or not self._open:
            yield from self._add_text("output_text", held, self._taken_logprobs(held))
        elif isinstance(text := self._open[-1], StreamedText) and text.kind == "message":
            yield from text.add_logprobs(self._logprobs)
        finish_last(self._open[-1].item, self._finish_reason, self._extra)
        yield from self._close()
        response = self._response(self._finish_reason)
        self._on_response(response)
        yield stream_events.ended(response)

    def _id(self, kind: str, more: int = 0) -> str:
        """Return an item's id, as in `chat_to_response`. `more`: how many items of this kind are still open."""
        before = sum(item["type"] == kind for item in self._output) + more
        number = f"_{before}" if before or kind == "function_call" else ""
        prefix = {"function_call": "fc", "reasoning": "rs"}.get(kind, "msg")
        return f"{prefix}_{self._answer['id']}{number}"

    def _response(self, finish_reason: str | None = None) -> Json:
        return response_around(self._output, self._answer, self._request, finish_reason)


def _joined(before: Any, value: Any) -> Any:
    """Combine the values of an unknown field in two deltas: both lists, else the last value that is not null."""
    if isinstance(before, list) and isinstance(value, list):
        return before + value
    return before if value is None else value


class StreamedText:
    def __init__(self, item: Json, index: int) -> None:
        self.item = item
        self.index = index
        self._group = "content" if "content" in item else "summary"
        self._texts: list[str] = []
        self._logprobs: list[Json] = []

    @property
    def kind(self) -> str:
        return str(self.item["type"])

    def add(self, kind: str, text: str, logprobs: list[Json]) -> Iterator[Event]:
        """Add text to the open part, or to a new part if the open one has a different type."""
        if not self._parts or self._parts[-1]["type"] != kind:
            yield from self.end()
            empty: Json = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
            self._parts.append({"type": kind, TEXT_FIELD[kind]: "", **empty})
            yield stream_events.part_added(self._where, self._parts[-1])
        if text:
            self._texts.append(text)
            self._logprobs.extend(logprobs)
            yield stream_events.part_delta(self._where, self._parts[-1], text, logprobs)

    def annotate(self, annotations: list[Json]) -> list[Json]:
        """Add annotations to the open text. Return those that could not be added because there is no text yet."""
        if not self._parts or "annotations" not in self._parts[-1]:
            return annotations
        self._parts[-1]["annotations"].extend(annotations)
        return []

    def add_logprobs(self, logprobs: list[Json]) -> Iterator[Event]:
        """Send the logprobs of final tokens that have no text in an empty delta."""
        if logprobs and self._parts:
            self._logprobs.extend(logprobs)
            yield stream_events.part_delta(self._where, self._parts[-1], "", logprobs)

    def end(self) -> Iterator[Event]:
        if self._parts:
            part = self._parts[-1]
            part[TEXT_FIELD[part["type"]]] = "".join(self._texts)
            if "logprobs" in part:
                part["logprobs"] = self._logprobs
            self._texts, self._logprobs = [], []
            yield from stream_events.part_done(self._where, part)

    @property
    def _parts(self) -> list[Json]:
        parts: list[Json] = self.item[self._group]
        return parts

    @property
    def _where(self) -> Json:
        part = {f"{self._group}_index": len(self._parts) - 1}
        return {"output_index": self.index, "item_id": self.item["id"], **part}


class StreamedToolCall:
    kind = "function_call"

    def __init__(self, call: Json, index: int, item_id: str, taken: set[str]) -> None:
        blank = {**mapping(call.get("function")), "arguments": ""}
        self.item = call_item({**call, "function": blank}, item_id, taken)
        self.index = index
        self._number = call.get("index")
        self._id = call.get("id")
        self._where = {"output_index": index, "item_id": item_id}
        self._arguments: list[str] = []

    def continues_with(self, call: Json) -> bool:
        """Return True if `call` continues this tool call. Some engines give every call index 0, but different ids."""
        other = call.get("id") and call["id"] != self._id
        return call.get("index") == self._number and not other

    def add(self, name: str, arguments: str) -> Iterator[Event]:
        """Append to the arguments. Some engines send the name late, so set it if it is still missing."""
        self.item["name"] = self.item["name"] or name
        if arguments:
            self._arguments.append(arguments)
            yield stream_events.arguments_delta(self._where, arguments)

    def end(self) -> Iterator[Event]:
        self.item["arguments"] = "".join(self._arguments)
        yield stream_events.arguments_done(self._where, self.item)
