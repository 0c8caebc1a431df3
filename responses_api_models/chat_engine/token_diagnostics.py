"""Checkup: whether multi-turn stays contiguous with this model, template and tool parser, and where it breaks.

Two looks. The template alone: for turns of several kinds (text, calls, reasoning), as the template itself would write
them, does the next prompt begin with them? And the model's own: turns that it samples, sent on as messages: does the
prompt begin with the ids that it generated? Beside each, the same for the prompt built from token ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.responses_api_models.chat_engine import hermes
from rollyard.responses_api_models.chat_engine.token_backends.base import TokenBackend
from rollyard.responses_api_models.chat_engine.token_backends.generate import GenerateBackend
from rollyard.responses_api_models.chat_engine.token_history import history
from rollyard.responses_api_models.chat_engine.token_history.continuation import Continuation
from rollyard.responses_api_models.upstream.answers import json_object
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.errors import Failure
from rollyard.services.responses.response_validity import first_choice
from rollyard.services.types import Json

SHOWN_IDS = 12
"""Ids decoded on each side of a difference."""
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "move",
        "description": "Move one step and see the board.",
        "parameters": {
            "type": "object",
            "properties": {"direction": {"type": "string", "enum": ["up", "down", "left", "right"]}},
            "required": ["direction"],
        },
    },
}
_START: list[Json] = [{"role": "user", "content": "Reach the goal. Move left first, then say where you are."}]
_ASKED: Json = {"role": "user", "content": "And now?"}


def _call(number: int, direction: str) -> Json:
    function = {"name": "move", "arguments": orjson.dumps({"direction": direction}).decode()}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _answer(number: int) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": "#####\n#_P_#\n#####"}


@dataclass(frozen=True, slots=True)
class Case:
    """A turn of the model, and what comes after it."""

    name: str
    said: Json
    new: list[Json]


def _cases() -> list[Case]:
    one, two = [_call(1, "left")], [_call(1, "left"), _call(2, "up")]
    left = "The goal is left of me."

    def said(content: str | None, calls: list[Json] | None = None, thought: str = "") -> Json:
        reasoning = {"reasoning_content": thought, "reasoning": thought} if thought else {}
        return {"role": "assistant", "content": content, **reasoning, **({"tool_calls": calls} if calls else {})}

    return [
        Case("text, then a question", said("I am at the goal."), [_ASKED]),
        Case("a tool call, then its answer", said(None, one), [_answer(1)]),
        Case("text and a tool call", said("I go left.", one), [_answer(1)]),
        Case("two tool calls", said(None, two), [_answer(1), _answer(2)]),
        Case("reasoning and a tool call", said(None, one, left), [_answer(1)]),
        Case("reasoning and text, then a question", said("I am there.", None, left), [_ASKED]),
    ]


class TokenDiagnostics:
    """Looks at one engine."""

    def __init__(self, upstream: Upstream, backend: TokenBackend, model: str, takes_seeds: bool) -> None:
        self._upstream = upstream
        self._backend = backend
        self._body: Json = {"model": model, "tools": [TOOL], "temperature": 1.0, "max_tokens": 256}
        self._request_context = RequestContext({})
        self._takes_seeds = takes_seeds
        """With seeds, looks at one engine sample the same turns."""
        self._continuation = Continuation()

    async def template(self) -> list[Json]:
        """Each kind of turn: `retokenized` and `token_in` are null when contiguous, else where they break; `parser`
        says what the tool parser made of it.
        """
        return [await self._case(case) for case in _cases()]

    async def sampled(self, count: int) -> Json:
        """Turns of the model itself: how many there are, how many of the prompts after them break, and the first."""
        broken: list[Json] = []
        for seed in range(count):
            body = {**self._body, "messages": _START, "return_token_ids": True}
            if self._takes_seeds:
                body["seed"] = seed
            completion = await self._upstream.post(
                "/chat/completions", orjson.dumps(body), json_object, self._request_context
            )
            choice, message = first_choice(completion)
            ids = [*completion["prompt_token_ids"], *choice["token_ids"]]
            new = [{**_answer(1), "tool_call_id": call["id"]} for call in message.get("tool_calls") or ()] or [_ASKED]
            rendered = await self._backend.render(self._body, [*_START, message, *new], self._request_context)
            if found := await self._difference(ids, rendered.ids):
                broken.append(found)
        return {"turns": count, "broken": len(broken), "first": broken[0] if broken else None}

    async def _case(self, case: Case) -> Json:
        name = {"case": case.name}
        try:
            prompt = (await self._backend.render(self._body, _START, self._request_context)).ids
            whole = (await self._backend.render(self._body, [*_START, case.said], self._request_context, ask=False)).ids
            after = (await self._backend.render(self._body, [*_START, case.said, *case.new], self._request_context)).ids
        except Failure as failure:
            return {**name, "error": f"the template refuses it: {failure.problem.detail}"}
        if found := await self._difference(prompt, whole):
            # The words that make the model speak are not those that the template writes before a finished turn.
            return {**name, "retokenized": found, "token_in": None, "parser": None}
        ids = whole
        ending = await self._continuation.ending(self._backend, self._body, self._request_context)
        if ending is not None and ending.token in whole:
            ids = whole[: len(whole) - whole[::-1].index(ending.token)]
        before = history.Turn(1, ids, {})
        body = {**self._body, "messages": [*_START, case.said, *case.new]}
        built = await self._continuation.prompt(self._backend, before, body, self._request_context)
        expected = await self._text(after[-SHOWN_IDS:])
        token_in = None
        if built is None:
            token_in = {"reason": "the template shows no end of a turn"}
        elif await self._text(built[0][-SHOWN_IDS:]) != expected:
            token_in = {"expected": expected, "found": await self._text(built[0][-SHOWN_IDS:])}
        parsed = await self._parsed(prompt, ids[len(prompt) :], case.said)
        return {**name, "retokenized": await self._difference(ids, after), "token_in": token_in, "parser": parsed}

    async def _parsed(self, prompt: list[int], generated: list[int], said: Json) -> str:
        """`ok`, or what the tool parser made of a turn with calls that the template wrote."""
        if isinstance(self._backend, GenerateBackend):
            answer: Json = {"request_id": "checkup", "choices": [{"index": 0, "token_ids": generated}]}
            answer["choices"][0].update(finish_reason="stop", logprobs=None)
            _, message = first_choice(await self._backend.read(answer, prompt, self._body, self._request_context))
        else:
            message = hermes.read(await self._text(generated, special=False))
        wanted, found = _calls(said), _calls(message)
        return "ok" if wanted == found else f"expected {wanted}, found {found} in {str(message.get('content'))[:200]!r}"

    async def _difference(self, expected: list[int], found: list[int]) -> Json | None:
        """Where `found` stops beginning with `expected`, in words; None when it does not."""
        at = history.first_difference(expected, found)
        if at is None:
            return None
        return {
            "position": at,
            "before": await self._text(expected[max(at - SHOWN_IDS, 0) : at]),
            "expected": await self._text(expected[at : at + SHOWN_IDS]),
            "found": await self._text(found[at : at + SHOWN_IDS]),
        }

    async def _text(self, ids: list[int], *, special: bool = True) -> str:
        if not ids:
            return ""
        body = orjson.dumps({"model": self._body["model"], "tokens": ids})
        text: str = (await self._upstream.post("/../detokenize", body, json_object, self._request_context))["prompt"]
        return text if special else text.removesuffix("<|im_end|>")


def _calls(message: Json) -> list[Any]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [[function["name"], orjson.loads(function["arguments"] or "{}")] for function in functions]
