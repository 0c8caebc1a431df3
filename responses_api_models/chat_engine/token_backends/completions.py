"""Sends token ids through /tokenize and /v1/completions, and parses tool calls from the text."""

from __future__ import annotations

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine import hermes, sampling
from rollyard.responses_api_models.chat_engine.token_backends.base import QUESTION, Generated, Rendered
from rollyard.responses_api_models.chat_engine.token_backends.engine_responses import finish, logprobs_of, object_reader
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import Upstream

_CHAT_ONLY = frozenset(
    {"messages", "tools", "tool_choice", "parallel_tool_calls", "max_completion_tokens", "logprobs", "top_logprobs"}
    | {"chat_template", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "metadata"}
)


class CompletionsBackend:
    """Sends token ids through the completions endpoint."""

    name = "completions"
    names_versions = False

    def __init__(self, upstream: Upstream, parses_tools: bool) -> None:
        self._upstream = upstream
        self._parses_tools = parses_tools

    def _expects_calls(self, body: Json) -> bool:
        return self._parses_tools and bool(body.get("tools")) and body.get("tool_choice") != "none"

    async def check(self, model: str, request_context: RequestContext) -> None:
        await self.render({"model": model}, [QUESTION], request_context)

    def unsupported_reason(self, body: Json) -> str:
        if not body.get("tools"):
            return ""
        if not self._parses_tools:
            return "no_text_tool_parser"
        # The chat endpoint enforces such a call with a grammar, which this endpoint does not support.
        return "tool_choice" if body.get("tool_choice") not in (None, "auto", "none") else ""

    async def render(
        self, body: Json, messages: list[Json], request_context: RequestContext, *, ask: bool = True
    ) -> Rendered:
        kept = ("model", "tools", "chat_template", "chat_template_kwargs")
        request = {key: body[key] for key in kept if body.get(key) is not None}
        request.update(messages=messages, add_generation_prompt=ask, add_special_tokens=False)
        answer = await self._upstream.post(
            "/../tokenize", orjson.dumps(request), object_reader("tokens"), request_context
        )
        return Rendered(answer["tokens"], {"max_model_len": answer.get("max_model_len")})

    async def generate(
        self, ids: list[int], rendered: Rendered, body: Json, request_context: RequestContext, *, texts: bool = False
    ) -> Generated:
        request = {key: value for key, value in body.items() if key not in _CHAT_ONLY}
        request.update(prompt=ids, return_token_ids=True, add_special_tokens=False)
        request["logprobs"] = body.get("top_logprobs") or 0
        if self._expects_calls(body):
            request["skip_special_tokens"] = False  # the markers of calls are special tokens in some models
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if limit is None and (longest := rendered.request.get("max_model_len")):
            limit = max(longest - len(ids), 1)
        if limit is not None:
            request["max_tokens"] = limit
        answer = await self._upstream.post("/completions", orjson.dumps(request), _read_completed, request_context)
        choice = answer["choices"][0]
        generated, log_probs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        expects_calls = self._expects_calls(body)
        text = choice.get("text") or ""
        chat_choice = {
            "index": 0,
            "message": hermes.read(text) if expects_calls else hermes.plain(text),
            "logprobs": {"content": _with_texts(choice["logprobs"])} if texts else None,
            "finish_reason": choice.get("finish_reason"),
            "stop_reason": choice.get("stop_reason"),
        }
        completion = {**answer, "object": "chat.completion", "choices": [chat_choice]}
        finish(completion, body)
        return Generated(generated, log_probs, completion, sampling.of_request(body, tools_constrain=False))


def _with_texts(logprobs: Json) -> list[Json]:
    """Convert logprobs from the format of the completions endpoint to that of the chat endpoint."""

    def entry(token: str, logprob: float) -> Json:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    # Engines omit `top_logprobs` or return null if no other candidates were requested.
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    rows = zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    return [
        {**entry(token, own), "top_logprobs": [entry(*pair) for pair in (top or {}).items()]}
        for token, own, top in rows
    ]


def _read_completed(body: bytes) -> Json:
    answer = json_object(body)
    logprobs_of(answer, "token_logprobs")
    return answer
