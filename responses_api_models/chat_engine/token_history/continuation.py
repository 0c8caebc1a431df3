"""Continuation: the prompt of a later turn as token ids, the turn before as it was and behind it the new messages.

Only the new messages are rendered, by the engine's own chat template, and nothing of what was there is tokenized anew.
How they are cut out of a rendering: the template is given a conversation of a few words that stands for everything
before, followed by the new messages. The token that ends a turn of the model (`<|im_end|>` in ChatML) is found by
rendering two such conversations that differ only in what the model said: it is the first that both end with. The new
messages begin behind the stand-in's end of turn. Templates that treat the model's latest turn in a special way (Qwen3
drops earlier reasoning) change what stands before the cut, never what stands behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import orjson

from rollyard.responses_api_models.chat_engine.token_backends.base import Rendered, TokenBackend
from rollyard.responses_api_models.chat_engine.token_history import history
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.services.responses.tool_calls import UNNAMED, read_name, sendable_name
from rollyard.services.types import Json

_USER: Json = {"role": "user", "content": "x"}
_OTHER = '{"y": ["y"]}.\n\n</y>\n## y'
"""Ends in another letter than "x" and holds what ordinary text and calls are made of."""
KNOWN = 1024
"""Sets of tools and template arguments whose ending is remembered."""
_TEMPLATE = ("tools", "chat_template", "chat_template_kwargs", "reasoning_effort", "documents")


@dataclass(frozen=True, slots=True)
class Ending:
    """How the chat template ends a turn of the model, in the stand-in conversation."""

    token: int
    count: int
    """Which occurrence of the token ends the stand-in's turn."""


class Continuation:
    """Builds later turns' prompts; what it learns of a template it asks once."""

    def __init__(self) -> None:
        self._endings: dict[bytes, Ending | None] = {}

    async def prompt(
        self, backend: TokenBackend, before: history.Turn, body: Json, request_context: RequestContext
    ) -> tuple[list[int], Rendered] | None:
        """The ids, and what the engine made of the request. None when the template shows no end of a turn."""
        ending = await self.ending(backend, body, request_context)
        if ending is None:
            return None
        said, new = body["messages"][before.index], body["messages"][before.index + 1 :]
        rendered = await backend.render(body, [_USER, _stand_in("x", said), *new], request_context)
        at = -1
        for _ in range(ending.count):
            try:
                at = rendered.ids.index(ending.token, at + 1)
            except ValueError:
                return None
        # A turn that was cut off ends without the token: then the template's is taken along.
        ended = before.ids[-1] == ending.token
        return before.ids + rendered.ids[at + ended :], rendered

    async def ending(self, backend: TokenBackend, body: Json, request_context: RequestContext) -> Ending | None:
        """How a turn ends under this request's tools and template arguments; asked of the engine once."""
        key = orjson.dumps([body.get(name) for name in _TEMPLATE])
        if key not in self._endings:
            one = await backend.render(body, [_USER, _stand_in("x")], request_context, ask=False)
            two = await backend.render(body, [_USER, _stand_in(_OTHER)], request_context, ask=False)
            if len(self._endings) >= KNOWN:
                self._endings.clear()
            self._endings[key] = _shared_ending(one.ids, two.ids)
        return self._endings[key]


def _shared_ending(one: list[int], two: list[int]) -> Ending | None:
    """The two end in different letters, so that all they share at the end is the template's."""
    backwards = zip(reversed(one), reversed(two), strict=False)
    shared = [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], backwards)]
    # A token that ordinary text has too (a newline) would be found in a call or a thought, and the cut made there.
    if not shared or one.count(shared[-1]) != two.count(shared[-1]):
        return None
    return Ending(shared[-1], one.count(shared[-1]))


def _stand_in(text: str, said: Json | None = None) -> Json:
    """A turn of the model that stands for another: same calls by name and id, because answers refer to them."""
    calls = [
        {"id": call.get("id"), "type": "function", "function": {"name": _name(call), "arguments": "{}"}}
        for call in (said or {}).get("tool_calls") or ()
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _name(call: Json) -> str:
    function = call.get("function")
    return sendable_name(read_name(function.get("name"))) if isinstance(function, dict) else UNNAMED
