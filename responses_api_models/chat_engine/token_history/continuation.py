"""Builds the prompt of a later turn as token ids: the ids of the previous turn, followed by those of the new messages.

Only the new messages are rendered, by the engine's own chat template; the history is not tokenized again. To get their
ids, the template renders a short placeholder conversation followed by the new messages. The token that ends a model
turn (`<|im_end|>` in ChatML) is found by rendering two placeholder conversations that differ only in the model's text:
it is the first token of their common suffix. The new messages start after the end of the placeholder turn. Templates
that treat the model's latest turn specially (Qwen3 drops earlier reasoning) change only what precedes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.token_backends.base import Rendered, TokenBackend
from rollyard.responses_api_models.chat_engine.token_history.history import Turn
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.services.responses.tool_calls import UNNAMED, read_name, sendable_name

_USER: Json = {"role": "user", "content": "x"}
_OTHER = '{"y": ["y"]}.\n\n</y>\n## y'
"""Placeholder text that ends in a character other than "x" and contains the punctuation of ordinary text and tool
calls."""
MAX_CACHED = 1024
"""Maximum number of cached endings, one per set of tools and template arguments."""
_TEMPLATE = ("tools", "chat_template", "chat_template_kwargs", "reasoning_effort", "documents")


@dataclass(frozen=True, slots=True)
class Ending:
    """How the chat template ends the model turn in a placeholder conversation."""

    token: int
    count: int
    """Which occurrence of the token ends the placeholder turn."""


class Continuation:
    """Builds the prompts of later turns, and caches how each template ends a turn."""

    def __init__(self) -> None:
        self._endings: dict[bytes, Ending | None] = {}

    async def prompt(
        self, backend: TokenBackend, before: Turn, body: Json, request_context: RequestContext
    ) -> tuple[list[int], Rendered] | None:
        """Return the prompt's ids and the rendered request; None if the template has no recognizable end of a turn."""
        ending = await self.ending(backend, body, request_context)
        if ending is None:
            return None
        message, new = body["messages"][before.index], body["messages"][before.index + 1 :]
        rendered = await backend.render(body, [_USER, _placeholder("x", message), *new], request_context)
        at = -1
        for _ in range(ending.count):
            try:
                at = rendered.ids.index(ending.token, at + 1)
            except ValueError:
                return None
        # A truncated turn ends without the token, so the template's is included.
        has_ending = before.ids[-1] == ending.token
        return before.ids + rendered.ids[at + has_ending :], rendered

    async def ending(self, backend: TokenBackend, body: Json, request_context: RequestContext) -> Ending | None:
        """Return how the template ends a turn with this request's tools and template arguments. Results are cached."""
        key = orjson.dumps([body.get(name) for name in _TEMPLATE])
        if key not in self._endings:
            one = await backend.render(body, [_USER, _placeholder("x")], request_context, ask=False)
            two = await backend.render(body, [_USER, _placeholder(_OTHER)], request_context, ask=False)
            if len(self._endings) >= MAX_CACHED:
                self._endings.clear()
            self._endings[key] = _shared_ending(one.ids, two.ids)
        return self._endings[key]


def _shared_ending(one: list[int], two: list[int]) -> Ending | None:
    """Return the token that starts the common suffix of two renderings; None if it also occurs in ordinary text.

    The contents end in different characters, so the suffix belongs to the template.
    """
    backwards = zip(reversed(one), reversed(two), strict=False)
    shared = [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], backwards)]
    # A token that also occurs in ordinary text (a newline) could be found inside a call or reasoning instead.
    if not shared or one.count(shared[-1]) != two.count(shared[-1]):
        return None
    return Ending(shared[-1], one.count(shared[-1]))


def _placeholder(text: str, message: Json | None = None) -> Json:
    """Return a placeholder for a model turn. It keeps the calls' names and ids, because tool results refer to them."""
    calls = [
        {"id": call.get("id"), "type": "function", "function": {"name": _name(call), "arguments": "{}"}}
        for call in (message or {}).get("tool_calls") or ()
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _name(call: Json) -> str:
    function = call.get("function")
    return sendable_name(read_name(function.get("name"))) if isinstance(function, dict) else UNNAMED
