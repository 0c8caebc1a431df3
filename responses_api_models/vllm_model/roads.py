"""Roads: the two ways in which an engine takes token ids in. Both render messages, generate from ids, read the text.

GenerateRoad       vLLM's own: /v1/chat/completions/render, /inference/v1/generate, /v1/chat/completions/derender
(all with --enable-scale-out); the engine's tool and reasoning parsers read the answer
CompletionsRoad    /tokenize and /v1/completions, which every vLLM and many other engines have; the text is read
here, by `hermes`
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from responses_api_models.convert_answers import malformed
from responses_api_models.passage import Passage
from responses_api_models.upstream import Upstream
from responses_api_models.upstream_answers import json_object
from responses_api_models.vllm_model import hermes
from services.types import Json

SEED_IDS = 16
"""Ids of the prompt's end that the engine's detokenizer wants to see before the answer."""
_CHAT_ONLY = frozenset(
    {"messages", "tools", "tool_choice", "parallel_tool_calls", "max_completion_tokens", "logprobs", "top_logprobs"}
    | {"chat_template", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "metadata"}
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """Messages as the engine's chat template and tokenizer make them."""

    ids: list[int]
    request: Json = field(default_factory=dict)
    """What else the engine made of the chat request."""


@dataclass(frozen=True, slots=True)
class Generated:
    """What the engine generated from ids."""

    ids: list[int]
    log_probs: list[float]
    completion: Json
    """The same as a chat completion, tool calls and reasoning read."""
    weight_versions: Any = None
    """vLLM's own spans of weight versions over the generated tokens, where it reports them."""


class Road(Protocol):
    """What both ways can do."""

    name: str
    parses_tools: bool
    """Tool calls in what it generates are read."""

    async def render(self, body: Json, messages: list[Json], passage: Passage, *, ask: bool = True) -> Rendered:
        """Ids of `messages` under the tools and template arguments of the chat request `body`; `ask`: with the words
        that make the model speak next.
        """
        ...

    async def generate(self, ids: list[int], rendered: Rendered, body: Json, passage: Passage) -> Generated:
        """The model's turn after the prompt `ids`, sampled as the chat request `body` says."""
        ...


class GenerateRoad:
    """Token-in as vLLM offers it."""

    name = "generate"
    parses_tools = True

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def render(self, body: Json, messages: list[Json], passage: Passage, *, ask: bool = True) -> Rendered:
        """See `Road.render`."""
        sent = orjson.dumps({**body, "messages": messages, "add_generation_prompt": ask})
        request = await self._upstream.post("/chat/completions/render", sent, _with("token_ids"), passage)
        return Rendered(request["token_ids"], request)

    async def generate(self, ids: list[int], rendered: Rendered, body: Json, passage: Passage) -> Generated:
        """See `Road.generate`."""
        request = {key: value for key, value in rendered.request.items() if key not in ("token_offsets", "request_id")}
        if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
            # What is there was counted from the few rendered messages; without it the engine counts from `ids`.
            request["sampling_params"] = {k: v for k, v in request["sampling_params"].items() if k != "max_tokens"}
        request["token_ids"] = ids
        answer = await self._upstream.post(
            "/../inference/v1/generate", orjson.dumps(request), _with("choices"), passage
        )
        choice = answer["choices"][0]
        entries = (choice.get("logprobs") or {}).get("content") or []
        generated = choice.get("token_ids") or []
        if not body.get("top_logprobs"):
            choice["logprobs"] = None  # nobody asked for their text
        completion = await self.read(answer, ids, body, passage)
        log_probs = [entry["logprob"] for entry in entries]
        return Generated(generated, log_probs, completion, choice.get("weight_versions"))

    async def read(self, answer: Json, ids: list[int], body: Json, passage: Passage) -> Json:
        """The answer of /inference/v1/generate to the prompt `ids` as a chat completion, by the engine's parsers."""
        parsing = {
            "model": body.get("model"),
            "generate_response": answer,
            "prompt_tokens": len(ids),
            "prompt_token_ids": ids[-SEED_IDS:],
            "chat_request": {**body, "messages": [{"role": "user", "content": ""}]},
        }
        read = _with("choices")
        return await self._upstream.post("/chat/completions/derender", orjson.dumps(parsing), read, passage)


class CompletionsRoad:
    """Token-in by way of the plain completions endpoint."""

    name = "completions"

    def __init__(self, upstream: Upstream, parses_tools: bool) -> None:
        self._upstream = upstream
        self.parses_tools = parses_tools

    async def render(self, body: Json, messages: list[Json], passage: Passage, *, ask: bool = True) -> Rendered:
        """See `Road.render`."""
        kept = ("model", "tools", "chat_template", "chat_template_kwargs")
        request = {key: body[key] for key in kept if body.get(key) is not None}
        request.update(messages=messages, add_generation_prompt=ask, add_special_tokens=False)
        answer = await self._upstream.post("/../tokenize", orjson.dumps(request), _with("tokens"), passage)
        return Rendered(answer["tokens"], {"max_model_len": answer.get("max_model_len")})

    async def generate(self, ids: list[int], rendered: Rendered, body: Json, passage: Passage) -> Generated:
        """See `Road.generate`."""
        request = {key: value for key, value in body.items() if key not in _CHAT_ONLY}
        request.update(prompt=ids, logprobs=0, return_token_ids=True, add_special_tokens=False)
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        if limit is None and (longest := rendered.request.get("max_model_len")):
            limit = max(longest - len(ids), 1)
        if limit is not None:
            request["max_tokens"] = limit
        answer = await self._upstream.post("/completions", orjson.dumps(request), _with("choices"), passage)
        choice = answer["choices"][0]
        generated, log_probs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
        if generated is None or log_probs is None:
            raise malformed("has no token_ids or no logprobs", answer)
        message = hermes.read(choice.get("text") or "") if self.parses_tools else hermes.plain(choice.get("text") or "")
        reason = choice.get("finish_reason")
        chat_choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if message.get("tool_calls") and reason == "stop" else reason,
            "stop_reason": choice.get("stop_reason"),
        }
        completion = {**answer, "object": "chat.completion", "choices": [chat_choice]}
        return Generated(generated, log_probs, completion)


def _with(key: str) -> Any:
    """A reader of JSON objects that have `key`."""

    def read(body: bytes) -> Json:
        answer = json_object(body)
        if not answer.get(key):
            raise malformed(f"has no {key}", answer)
        return answer

    return read
