"""Turns: one model call with its tokens on record, each prompt beginning with exactly the ids of the turn before.

A turn is sent as token ids where that can be: the first as the engine renders it, so that its answer names the weight
version of each token, a later one behind the turn before (continuation.py). Where it cannot be, it goes as messages.
Whichever way it went, its prompt is compared with the turn before and a break is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.responses_api_models.chat_engine import sampling
from rollyard.responses_api_models.chat_engine.capabilities import Capabilities
from rollyard.responses_api_models.chat_engine.special_tokens import SpecialTokens
from rollyard.responses_api_models.chat_engine.token_backends.base import Rendered, TokenBackend
from rollyard.responses_api_models.chat_engine.token_history import history
from rollyard.responses_api_models.chat_engine.token_history.continuation import Continuation
from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions
from rollyard.responses_api_models.convert.answers import token_fields
from rollyard.responses_api_models.upstream.answers import json_object
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.responses.policy_logprobs import are_ids, invalid_numbers
from rollyard.services.responses.response_validity import check_completion, malformed
from rollyard.services.rollout_types import PolicyVersion, SamplingRecord, TokenTrace
from rollyard.services.types import TOKEN_FIELDS, Json

_BY_CHAT = ("echo", "continue_final_message", "truncate_prompt_tokens", "prompt_logprobs")
"""What a request may ask for that changes its prompt or its answer in a way that only the chat endpoint knows."""
_NO_TURN = {
    "n": "with tokens on record a call is one turn",
    "best_of": "with tokens on record a call is one turn",
    "use_beam_search": "a beam is not a sample, so its log-probabilities are of no use to a trainer",
    "logprob_token_ids": "with tokens on record the log-probabilities are those of the generated tokens",
}
"""Fields of which no other value than the default leaves one sampled turn."""


@dataclass(frozen=True, slots=True)
class EngineTurn:
    """A turn as an engine made it."""

    way: str
    completion: Json
    sampling: SamplingRecord
    reason: str = ""
    """Why it went as messages."""


class TokenTurns:
    """Model calls with tokens, over one upstream."""

    def __init__(
        self,
        upstream: Upstream,
        abilities: Capabilities,
        versions: PolicyVersions,
        special_tokens: SpecialTokens,
        *,
        sends_ids: bool = False,
    ) -> None:
        self._upstream = upstream
        self._abilities = abilities
        self._versions = versions
        self._special_tokens = special_tokens
        self._sends_ids = sends_ids
        self._continuation = Continuation()

    async def make(self, asked: Json, request_context: RequestContext) -> Json:
        """The chat completion for the chat request `asked`; its message carries the tokens and their trace."""
        given = _messages(asked)
        before, plain = history.last_turn(given), history.without_tokens(given)
        body = {**sampling.PLAIN, **{key: value for key, value in asked.items() if value is not None}}
        body.update(messages=plain, logprobs=True, top_logprobs=asked.get("top_logprobs") or 0)
        texts = bool(asked.get("logprobs"))
        mark, said = self._versions.mark, history.Fingerprint(body)
        recorded = said.add(plain[: before.index + 1]) if before else ""
        sent, escaped = await self._special_tokens.treated(body, request_context)
        made = await self._as_ids(before, sent, recorded, request_context, texts)
        if isinstance(made, str):
            ids_kept = {**sent, "messages": _with_ids(sent["messages"], given)} if self._sends_ids else sent
            made = await self._by_chat(ids_kept, made, request_context)
        completion = made.completion
        choice, message = check_completion(completion)
        message.update(token_fields(completion, choice, message))
        _check(message)
        # They stand on the message; where an engine puts them they stand for callers who asked as one asks an engine.
        wanted = (message["prompt_token_ids"], message["generation_token_ids"])
        completion["prompt_token_ids"], choice["token_ids"] = wanted if asked.get("return_token_ids") else (None, None)
        if not texts:
            choice["logprobs"] = None
        trace = _trace(message, before, made.reason)
        trace["way"] = made.way
        trace["context"] = said.add([*plain[before.index + 1 if before else 0 :], message])
        if escaped:
            trace["escaped"] = escaped
        mode = await self._abilities.logprobs_mode(request_context)
        trace["sampling"] = {**made.sampling, "logprobs_mode": mode, **self._version(mark, choice, request_context)}
        message["token_trace"] = trace
        return completion

    def _version(self, mark: int, choice: Json, request_context: RequestContext) -> PolicyVersion:
        spans = choice.pop("weight_versions", None)
        version = self._versions.sampled(mark, spans, request_context.url)
        return {**version, "version_of": "token" if isinstance(spans, list) and spans else "turn"}

    async def _by_chat(self, body: Json, reason: str, request_context: RequestContext) -> EngineTurn:
        sent = orjson.dumps({**body, "return_token_ids": True})
        completion = await self._upstream.post("/chat/completions", sent, _read_completion, request_context)
        return EngineTurn("chat", completion, sampling.of_request(body, tools_constrain=True), reason)

    async def _as_ids(
        self, before: history.Turn | None, body: Json, recorded: str, request_context: RequestContext, texts: bool
    ) -> EngineTurn | str:
        """The turn, sent as token ids; or why it cannot go so.

        `recorded` is what the conversation up to the turn before looks like now.
        """
        backend = await self._abilities.backend(request_context)
        if reason := _unfit(backend, before, recorded, body):
            return reason
        assert backend is not None
        if before is None and not backend.names_versions:
            return "nothing_gained"
        if before and await self._special_tokens.in_tools(body, request_context):
            return "special_tokens_in_tools"  # the cut behind the turn before might be made within them
        prompt = await self._prompt(backend, before, body, request_context)
        if prompt is None:
            return "no_end_of_turn"
        ids, rendered = prompt
        made = await backend.generate(ids, rendered, body, request_context, texts=texts)
        choice, message = check_completion(made.completion)
        choice["weight_versions"] = made.weight_versions
        message.update(prompt_token_ids=ids, generation_token_ids=made.ids, generation_log_probs=made.log_probs)
        return EngineTurn(backend.name, made.completion, made.sampling)

    async def _prompt(
        self, backend: TokenBackend, before: history.Turn | None, body: Json, request_context: RequestContext
    ) -> tuple[list[int], Rendered] | None:
        if before is not None:
            return await self._continuation.prompt(backend, before, body, request_context)
        rendered = await backend.render(body, body["messages"], request_context)
        return rendered.ids, rendered


def _read_completion(body: bytes) -> Json:
    completion = json_object(body)
    check_completion(completion)
    return completion


def _trace(message: Json, before: history.Turn | None, reason: str) -> TokenTrace:
    """How the turn hangs together with the one before. `reason`: why it went as messages."""
    if before is None:
        return {"segment": 0}
    found = before.trace.get("segment")
    segment = found if isinstance(found, int) else 0
    # A prompt sent as ids was put together from those of the turn before.
    broken = history.find_prefix_mismatch(before.ids, message["prompt_token_ids"], reason) if reason else None
    return {"segment": segment + 1, "break": broken} if broken else {"segment": segment}


def _unfit(backend: TokenBackend | None, before: history.Turn | None, recorded: str, body: Json) -> str:
    """Why the prompt cannot be sent as ids; empty when it can."""
    messages = body["messages"]
    if before is not None and before.trace.get("context", recorded) != recorded:
        return "history_changed"
    if backend is None:
        return "retokenized"
    if asked := next((name for name in _BY_CHAT if body.get(name)), ""):
        return asked
    if body.get("add_generation_prompt") is False:
        return "add_generation_prompt"
    if before is not None and before.index + 1 == len(messages):
        return "nothing_new"
    # An image is more than its ids, wherever it stands: the engine wants the picture with them.
    if any(isinstance(message.get("content"), list) and not _only_text(message["content"]) for message in messages):
        return "not_text"
    return backend.unsupported_reason(body)


def _only_text(parts: list[Any]) -> bool:
    return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)


def _with_ids(messages: list[Json], given: list[Json]) -> list[Json]:
    """The messages as an engine reads them that knows the token ids on them."""
    kept = history.without_traces(given)
    return [
        {**message, **{key: one[key] for key in TOKEN_FIELDS if key in one}}
        for message, one in zip(messages, kept, strict=True)
    ]


def _messages(asked: Json) -> list[Json]:
    """The conversation of a chat request. Raises Failure bad_request."""
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Failure(FailureKind.BAD_REQUEST, f"messages: found {str(messages)[:100]}; a list of messages is expected")
    for name, why in _NO_TURN.items():
        if (value := asked.get(name)) not in (None, False, []) and not (value == 1 and name in ("n", "best_of")):
            raise Failure(FailureKind.BAD_REQUEST, f"{name}: found {str(value)[:100]}; {why}")
    return messages


def _check(message: Json) -> None:
    """Raises Failure malformed_answer for tokens that a trainer could not use."""
    missing = [field for field in TOKEN_FIELDS[:3] if message.get(field) is None]
    shown = {key: value for key, value in message.items() if key != "content"}
    if missing:
        hint = "return_token_id_information needs vLLM 0.10.2 or later, which knows return_token_ids"
        raise malformed(f"lacks {', '.join(missing)} ({hint})", shown)
    if not are_ids(message["prompt_token_ids"]):
        raise malformed("has prompt ids that are not token ids", message["prompt_token_ids"])
    if wrong := invalid_numbers(message["generation_token_ids"], message["generation_log_probs"]):
        raise malformed(wrong, message["generation_log_probs"])
