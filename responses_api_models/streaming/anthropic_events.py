"""Converts a stream of Responses events to a stream of Anthropic's Messages API, without I/O.

    message_start
    for each block:  content_block_start, content_block_delta, content_block_stop
    message_delta (stop_reason, usage), message_stop | error

Each part of a text or reasoning item becomes a block, and so does each tool call. A tool call is sent in one delta,
once it is complete, because its arguments must be valid JSON.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.responses_api_models.convert.anthropic import (
    StopSequences,
    empty_message,
    ending,
    error_body,
    tool_use,
    usage_of,
)
from rollyard.services.responses.response_validity import check_response, malformed

_ADDED = frozenset({"response.content_part.added", "response.reasoning_summary_part.added"})
_DONE = frozenset({"response.content_part.done", "response.reasoning_summary_part.done"})
_ENDS = frozenset({"response.completed", "response.incomplete"})
_THINKING = frozenset({"summary_text", "reasoning_text"})
_Part = tuple[object, object]
"""Index of an item in the output, and of a part in the item."""


class MessageEvents:
    """Converts one stream, from its first event to its last."""

    def __init__(self, stop: StopSequences) -> None:
        self._stop = stop
        self._content: list[Json] = []
        self._open: dict[_Part, int] = {}
        """Parts whose block is not finished -> index of the block."""
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
        """Return the last event of a stream that failed."""
        self.ended = True
        return _encoded(error_body(status, message))

    def _read(self, event: Json) -> Iterator[Json]:
        kind = event["type"]
        if kind == "response.created":
            self._response = event["response"]
            yield {"type": "message_start", "message": empty_message(self._response)}
        elif kind in _ADDED:
            yield self._start(event)
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
            yield error_body(_status_of(event), str(event.get("message") or "the response was interrupted"))

    def _start(self, event: Json) -> Json:
        thinks = event["part"]["type"] in _THINKING
        block: Json = (
            {"type": "thinking", "thinking": "", "signature": ""}
            if thinks
            else {"type": "text", "text": "", "citations": None}
        )
        self._open[_part_of(event)] = index = len(self._content)
        self._content.append(block)
        return {"type": "content_block_start", "index": index, "content_block": block}

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


def _status_of(event: Json) -> int:
    error = event.get("error")
    status = error.get("status") if isinstance(error, dict) else None
    return status if isinstance(status, int) else 500


def _encoded(event: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
