"""Converts a finished chat completion to a stream of chunks, for model servers that do not stream themselves.

Nothing is sent before the completion is finished, but clients that require a stream can then use the server.
`stream_events.whole` does the same for the Responses API; it is in `services` because agents also use it.
"""

from __future__ import annotations

from typing import Any

import orjson

from rollyard.records.types import Json

DONE = b"data: [DONE]\n\n"


def chat_chunks(completion: Json, with_usage: bool = False) -> bytes:
    """Return a finished completion as the body of a Chat Completions stream, with each text in a single chunk."""
    base = {key: value for key, value in completion.items() if key not in ("choices", "usage")}
    base["object"] = "chat.completion.chunk"
    pieces: list[bytes] = []

    def send(choices: list[Json], **extra: Any) -> None:
        pieces.append(b"data: %b\n\n" % orjson.dumps({**base, "choices": choices, **extra}))

    for choice in completion["choices"]:
        index, message = choice["index"], choice["message"]
        delta = {key: value for key, value in message.items() if key != "tool_calls" and value is not None}
        fields = {key: value for key, value in choice.items() if key not in ("message", "finish_reason")}
        send([{**fields, "delta": delta, "finish_reason": None}])
        for number, call in enumerate(message.get("tool_calls") or ()):
            tool_calls = [{**call, "index": number}]
            send([{"index": index, "delta": {"tool_calls": tool_calls}, "finish_reason": None}])
        send([{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}])
    if with_usage:
        send([], usage=completion.get("usage"))
    pieces.append(DONE)
    return b"".join(pieces)
