"""Checks whether multi-turn token histories are contiguous with this model, template and tool parser.

There are two checks. The first renders turns of several kinds (text, calls, reasoning) with the template and checks
that the next prompt begins with their ids. The second samples turns from the model, sends them as messages, and checks
that the next prompt begins with the generated ids. The prompts that are built from token ids are checked in the same
way.
"""

from __future__ import annotations

from typing import Any

import orjson

from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.token_backends import GenerateBackend, TokenBackend, read_hermes
from rollyard.responses_api_models.chat_engine.token_history import Continuation, TokenTurn, first_difference
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.responses.response_validity import first_choice

SHOWN_IDS = 12
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
_FOLLOW_UP: Json = {"role": "user", "content": "And now?"}


def _call(number: int, direction: str) -> Json:
    function = {"name": "move", "arguments": orjson.dumps({"direction": direction}).decode()}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _answer(number: int) -> Json:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": "#####\n#_P_#\n#####"}


def _cases() -> list[tuple[str, Json, list[Json]]]:
    calls = [_call(1, "left"), _call(2, "up")]
    left = "The goal is left of me."

    def message(content: str | None, calls: list[Json] | None = None, reasoning: str = "") -> Json:
        fields = {"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {}
        return {"role": "assistant", "content": content, **fields, **({"tool_calls": calls} if calls else {})}

    return [
        ("text, then a question", message("I am at the goal."), [_FOLLOW_UP]),
        ("a tool call, then its answer", message(None, calls[:1]), [_answer(1)]),
        ("text and a tool call", message("I go left.", calls[:1]), [_answer(1)]),
        ("two tool calls", message(None, calls), [_answer(1), _answer(2)]),
        ("reasoning and a tool call", message(None, calls[:1], left), [_answer(1)]),
        ("reasoning and text, then a question", message("I am there.", None, left), [_FOLLOW_UP]),
    ]


class TokenDiagnostics:
    def __init__(self, upstream: Upstream, backend: TokenBackend, model: str, takes_seeds: bool) -> None:
        self._upstream = upstream
        self._backend = backend
        self._body: Json = {"model": model, "tools": [TOOL], "temperature": 1.0, "max_tokens": 256}
        self._request_context = RequestContext({})
        self._takes_seeds = takes_seeds
        """If True, requests have seeds, so repeated checks of an engine sample the same turns."""
        self._continuation = Continuation()

    async def template(self) -> list[Json]:
        """Check each kind of turn. In each result, `retokenized` and `token_in` describe a mismatch, or are null if the
        ids are contiguous; `parser` is the result of the tool parser check.
        """
        return [{"case": name, **await self._case(message, new)} for name, message, new in _cases()]

    async def sampled(self, count: int) -> Json:
        """Check sampled turns. Returns their number, the number of prefix mismatches, and the first mismatch."""
        mismatches: list[Json] = []
        for seed in range(count):
            body = {**self._body, "messages": _START, "return_token_ids": True}
            if self._takes_seeds:
                body["seed"] = seed
            completion = await self._post("/chat/completions", body)
            choice, message = first_choice(completion)
            ids = [*completion["prompt_token_ids"], *choice["token_ids"]]
            new = [{**_answer(1), "tool_call_id": call["id"]} for call in message.get("tool_calls") or ()]
            if found := await self._difference(ids, await self._rendered(message, *(new or [_FOLLOW_UP]))):
                mismatches.append(found)
        return {"turns": count, "broken": len(mismatches), "first": mismatches[0] if mismatches else None}

    async def _rendered(self, *messages: Json, ask: bool = True) -> list[int]:
        return (await self._backend.render(self._body, [*_START, *messages], self._request_context, ask=ask)).ids

    async def _post(self, path: str, body: Json) -> Json:
        return await self._upstream.post(path, orjson.dumps(body), json_object, self._request_context)

    async def _case(self, message: Json, new: list[Json]) -> Json:
        try:
            prompt, whole = await self._rendered(), await self._rendered(message, ask=False)
            after = await self._rendered(message, *new)
        except Failure as failure:
            return {"error": f"the template rejects this turn: {failure.problem.detail}"}
        if found := await self._difference(prompt, whole):
            # The generation prompt differs from what the template renders before a finished turn.
            return {"retokenized": found, "token_in": None, "parser": None}
        ids = whole
        ending = await self._continuation.ending(self._backend, self._body, self._request_context)
        if ending is not None and ending.token in whole:
            ids = whole[: len(whole) - whole[::-1].index(ending.token)]
        body = {**self._body, "messages": [*_START, message, *new]}
        built = await self._continuation.prompt(self._backend, TokenTurn(1, ids, {}), body, self._request_context)
        expected = await self._text(after[-SHOWN_IDS:])
        token_in = None
        if built is None:
            token_in = {"reason": "the template has no recognizable end of a turn"}
        elif (built_end := await self._text(built[0][-SHOWN_IDS:])) != expected:
            token_in = {"expected": expected, "found": built_end}
        parsed = await self._parsed(prompt, ids[len(prompt) :], message)
        return {"retokenized": await self._difference(ids, after), "token_in": token_in, "parser": parsed}

    async def _parsed(self, prompt: list[int], generated: list[int], original: Json) -> str:
        if isinstance(self._backend, GenerateBackend):
            choice = {"index": 0, "token_ids": generated, "finish_reason": "stop", "logprobs": None}
            answer = {"request_id": "checkup", "choices": [choice]}
            _, message = first_choice(await self._backend.read(answer, prompt, self._body, self._request_context))
        else:
            message = read_hermes(await self._text(generated, special=False))
        expected, found = _calls(original), _calls(message)
        text = str(message.get("content"))[:200]
        return "ok" if expected == found else f"expected {expected}, found {found} in {text!r}"

    async def _difference(self, expected: list[int], found: list[int]) -> Json | None:
        """Describe where `found` differs from `expected`; None if `found` begins with `expected`."""
        at = first_difference(expected, found)
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
        text: str = (await self._post("/../detokenize", {"model": self._body["model"], "tokens": ids}))["prompt"]
        return text if special else text.removesuffix("<|im_end|>")


def _calls(message: Json) -> list[Any]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return [[function["name"], orjson.loads(function["arguments"] or "{}")] for function in functions]
