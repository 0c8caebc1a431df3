"""Makes model calls and records their tokens. Each prompt begins with exactly the ids of the previous turn, if
possible.

A turn is preferably sent as token ids: the first one as the engine renders it, so the response reports the weight
version of each token; later turns continue the previous one (continuation.py). Otherwise, the turn is sent as messages,
and its prompt is compared with the previous turn to detect and record a prefix mismatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.token_types import PolicyVersion, SamplingRecord
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.responses_api_models.chat_engine import sampling
from rollyard.responses_api_models.chat_engine.capabilities import Capabilities
from rollyard.responses_api_models.chat_engine.special_tokens import SpecialTokens
from rollyard.responses_api_models.chat_engine.token_backends.base import Rendered, TokenBackend
from rollyard.responses_api_models.chat_engine.token_history.continuation import Continuation
from rollyard.responses_api_models.chat_engine.token_history.history import TokenHistory, Turn
from rollyard.responses_api_models.chat_engine.token_history.token_texts import token_texts
from rollyard.responses_api_models.chat_engine.weights.policy_versions import PolicyVersions
from rollyard.responses_api_models.convert.completions import token_fields
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.responses.policy_logprobs import are_ids, invalid_numbers
from rollyard.services.responses.response_validity import check_completion, malformed
from rollyard.services.responses.tool_calls import normalize_calls

_CHAT_ONLY = ("echo", "continue_final_message", "truncate_prompt_tokens", "prompt_logprobs")
"""Fields that change the prompt or the response in a way that only the chat endpoint supports."""
_NO_TURN = {
    "n": "if tokens are recorded, a call is one turn",
    "best_of": "if tokens are recorded, a call is one turn",
    "use_beam_search": "a beam is not a sample, so a trainer cannot use its log-probabilities",
    "logprob_token_ids": "if tokens are recorded, the log-probabilities are those of the generated tokens",
}
"""Fields for which only the default value results in one sampled turn."""


@dataclass(frozen=True, slots=True)
class EngineTurn:
    """A turn as returned by an engine."""

    way: str
    completion: Json
    sampling: SamplingRecord
    reason: str = ""
    """Why the turn was sent as messages; empty if it was sent as token ids."""


class TokenTurns:
    """Makes model calls through one upstream and records their tokens."""

    def __init__(
        self,
        upstream: Upstream,
        capabilities: Capabilities,
        versions: PolicyVersions,
        special_tokens: SpecialTokens,
        *,
        sends_ids: bool = False,
        records_texts: bool = False,
    ) -> None:
        self._upstream = upstream
        self._capabilities = capabilities
        self._versions = versions
        self._special_tokens = special_tokens
        self._sends_ids = sends_ids
        self._records_texts = records_texts
        self._continuation = Continuation()

    async def make(self, request: Json, request_context: RequestContext) -> Json:
        """Return the chat completion for a chat request; its message contains the tokens and their trace."""
        history = TokenHistory(request, _messages(request))
        body = {**sampling.PLAIN, **{key: value for key, value in request.items() if value is not None}}
        body.update(messages=history.messages, logprobs=True, top_logprobs=request.get("top_logprobs") or 0)
        texts = bool(request.get("logprobs"))
        mark = self._versions.mark
        sent, escaped = await self._special_tokens.treated(body, request_context)
        turn = await self._as_ids(history, sent, request_context, texts or self._records_texts)
        if isinstance(turn, str):
            chat = {**sent, "messages": history.with_ids(sent["messages"])} if self._sends_ids else sent
            turn = await self._as_messages(chat, turn, request_context)
        completion = turn.completion
        choice, message = check_completion(completion)
        normalize_calls(message)
        message.update(token_fields(completion, choice, message))
        _check(message)
        # The message contains them. If the caller set return_token_ids, they are also in the engine's own fields.
        wanted = (message["prompt_token_ids"], message["generation_token_ids"])
        completion["prompt_token_ids"], choice["token_ids"] = (
            wanted if request.get("return_token_ids") else (None, None)
        )
        recorded = token_texts(choice, len(message["generation_token_ids"])) if self._records_texts else []
        if not texts:
            choice["logprobs"] = None
        trace = history.trace(message, turn.reason)
        trace["way"] = turn.way
        if recorded:
            trace["texts"] = recorded
        if escaped:
            trace["escaped"] = escaped
        mode = await self._capabilities.logprobs_mode(request_context)
        trace["sampling"] = {**turn.sampling, "logprobs_mode": mode, **self._version(mark, choice, request_context)}
        message["token_trace"] = trace
        return completion

    def _version(self, mark: int, choice: Json, request_context: RequestContext) -> PolicyVersion:
        spans = choice.pop("weight_versions", None)
        version = self._versions.sampled(mark, spans, request_context.url)
        return {**version, "version_of": "token" if isinstance(spans, list) and spans else "turn"}

    async def _as_messages(self, body: Json, reason: str, request_context: RequestContext) -> EngineTurn:
        sent = orjson.dumps({**body, "return_token_ids": True})
        completion = await self._upstream.post("/chat/completions", sent, _read_completion, request_context)
        return EngineTurn("chat", completion, sampling.of_request(body, tools_constrain=True), reason)

    async def _as_ids(
        self, history: TokenHistory, body: Json, request_context: RequestContext, texts: bool
    ) -> EngineTurn | str:
        """Send the turn as token ids, or return why this is not possible."""
        backend = await self._capabilities.backend(request_context)
        if reason := _unsupported_reason(backend, history, body):
            return reason
        assert backend is not None
        if history.last is None and not backend.names_versions:
            return "nothing_gained"
        if history.last and await self._special_tokens.in_tools(body, request_context):
            return "special_tokens_in_tools"  # they could be mistaken for the end of the previous turn
        prompt = await self._prompt(backend, history.last, body, request_context)
        if prompt is None:
            return "no_end_of_turn"
        ids, rendered = prompt
        turn = await backend.generate(ids, rendered, body, request_context, texts=texts)
        choice, message = check_completion(turn.completion)
        choice["weight_versions"] = turn.weight_versions
        message.update(prompt_token_ids=ids, generation_token_ids=turn.ids, generation_log_probs=turn.log_probs)
        return EngineTurn(backend.name, turn.completion, turn.sampling)

    async def _prompt(
        self, backend: TokenBackend, before: Turn | None, body: Json, request_context: RequestContext
    ) -> tuple[list[int], Rendered] | None:
        if before is not None:
            return await self._continuation.prompt(backend, before, body, request_context)
        rendered = await backend.render(body, body["messages"], request_context)
        return rendered.ids, rendered


def _read_completion(body: bytes) -> Json:
    completion = json_object(body)
    check_completion(completion)
    return completion


def _unsupported_reason(backend: TokenBackend | None, history: TokenHistory, body: Json) -> str:
    """Return why the prompt cannot be sent as ids; empty if it can."""
    messages = body["messages"]
    if history.is_changed:
        return "history_changed"
    if backend is None:
        return "retokenized"
    if request := next((name for name in _CHAT_ONLY if body.get(name)), ""):
        return request
    if body.get("add_generation_prompt") is False:
        return "add_generation_prompt"
    if history.last is not None and history.last.index + 1 == len(messages):
        return "nothing_new"
    # An image cannot be sent as ids alone: the engine needs the image itself.
    if any(isinstance(message.get("content"), list) and not _only_text(message["content"]) for message in messages):
        return "not_text"
    return backend.unsupported_reason(body)


def _only_text(parts: list[Any]) -> bool:
    return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)


def _messages(request: Json) -> list[Json]:
    """Return the messages of a chat request. Raises Failure bad_request if tokens cannot be recorded for it."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Failure(FailureKind.BAD_REQUEST, f"messages: found {str(messages)[:100]}; expected a list of messages")
    for name, why in _NO_TURN.items():
        if (value := request.get(name)) not in (None, False, []) and not (value == 1 and name in ("n", "best_of")):
            raise Failure(FailureKind.BAD_REQUEST, f"{name}: found {str(value)[:100]}; {why}")
    return messages


def _check(message: Json) -> None:
    """Raise Failure malformed_answer for tokens that a trainer could not use."""
    missing = [field for field in TOKEN_FIELDS[:3] if message.get(field) is None]
    shown = {key: value for key, value in message.items() if key != "content"}
    if missing:
        hint = "return_token_id_information requires vLLM 0.10.2 or later, which supports return_token_ids"
        raise malformed(f"lacks {', '.join(missing)} ({hint})", shown)
    if not are_ids(message["prompt_token_ids"]):
        raise malformed("has prompt_token_ids that are not a list of token ids", message["prompt_token_ids"])
    if wrong := invalid_numbers(message["generation_token_ids"], message["generation_log_probs"]):
        raise malformed(wrong, message["generation_log_probs"])
