"""Makes model calls and records their tokens. Each prompt begins with exactly the ids of the previous turn, if it can.

A turn is preferably sent as token ids: the first one as the engine renders it, so the response reports the weight
version of each token; later turns continue the previous one (`Continuation`). Otherwise, the turn is sent as messages,
and its prompt is compared with the previous turn to detect and record a prefix mismatch.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import PolicyVersion, PrefixMismatch, SamplingRecord, TokenTrace
from rollyard.records.types import TOKEN_FIELDS, Json, items, mapping
from rollyard.responses_api_models.chat_engine import sampling
from rollyard.responses_api_models.chat_engine.policy_versions import PolicyVersions
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.special_tokens import SpecialTokens
from rollyard.responses_api_models.chat_engine.token_backends import Capabilities, Rendered, TokenBackend
from rollyard.responses_api_models.conversion import token_fields
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.responses.policy_logprobs import are_ids, invalid_numbers
from rollyard.services.responses.response_validity import (
    UNNAMED,
    check_completion,
    malformed,
    normalize_calls,
    read_arguments,
    read_name,
    sendable_arguments,
    sendable_name,
)

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
    way: str
    completion: Json
    sampling: SamplingRecord
    reason: str = ""
    """Why the turn was sent as messages; empty if it was sent as token ids."""


class TokenTurns:
    def __init__(
        self,
        upstream: Upstream,
        capabilities: Capabilities,
        versions: PolicyVersions,
        special_tokens: SpecialTokens,
        settings: ChatEngineSettings,
    ) -> None:
        self._upstream = upstream
        self._capabilities = capabilities
        self._versions = versions
        self._special_tokens = special_tokens
        self._sends_ids = settings.send_token_ids
        self._records_texts = settings.return_token_texts
        self._continuation = Continuation()

    async def make(self, request: Json, request_context: RequestContext) -> Json:
        history = ServedTokenHistory(request, _messages(request))
        body = {**sampling.PLAIN, **{key: value for key, value in request.items() if value is not None}}
        body.update(messages=history.messages, logprobs=True, top_logprobs=request.get("top_logprobs") or 0)
        texts = bool(request.get("logprobs"))
        mark = self._versions.mark
        sent, escaped = await self._special_tokens.treated(body, request_context)
        turn = await self._as_ids(history, sent, request_context, texts or self._records_texts)
        if isinstance(turn, str):
            chat = {**sent, "messages": history.with_ids(sent["messages"])} if self._sends_ids else sent
            encoded = orjson.dumps({**chat, "return_token_ids": True})
            found = await self._upstream.post("/chat/completions", encoded, _read_completion, request_context)
            turn = EngineTurn("chat", found, sampling.of_request(chat, tools_constrain=True), turn)
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
        spans = choice.pop("weight_versions", None)
        version: PolicyVersion = {
            **self._versions.sampled(mark, spans, request_context.url),
            "version_of": "token" if isinstance(spans, list) and spans else "turn",
        }
        trace["sampling"] = {**turn.sampling, "logprobs_mode": mode, **version}
        message["token_trace"] = trace
        return completion

    async def _as_ids(
        self, history: ServedTokenHistory, body: Json, request_context: RequestContext, texts: bool
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
        if history.last is None:
            rendered = await backend.render(body, body["messages"], request_context)
            ids = rendered.ids
        elif prompt := await self._continuation.prompt(backend, history.last, body, request_context):
            ids, rendered = prompt
        else:
            return "no_end_of_turn"
        turn = await backend.generate(ids, rendered, body, request_context, texts=texts)
        choice, message = check_completion(turn.completion)
        choice["weight_versions"] = turn.weight_versions
        message.update(prompt_token_ids=ids, generation_token_ids=turn.ids, generation_log_probs=turn.log_probs)
        return EngineTurn(backend.name, turn.completion, turn.sampling)


def _read_completion(body: bytes) -> Json:
    completion = json_object(body)
    check_completion(completion)
    return completion


def _unsupported_reason(backend: TokenBackend | None, history: ServedTokenHistory, body: Json) -> str:
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
    parts = (part for message in messages for part in items(message.get("content")))
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        return "not_text"
    return backend.unsupported_reason(body)


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


@dataclass(frozen=True, slots=True)
class TokenTurn:
    index: int
    ids: list[int]
    """Prompt ids followed by generated ids."""
    trace: Json
    """The turn's `token_trace`; empty if another framework recorded the tokens."""


class ServedTokenHistory:
    """The token history that the messages of one chat request contain. The caller sends its `messages`, and calls
    `trace` with the message that the model returned. The last item (or chat message) of each model call contains its
    tokens and a `token_trace`, and the next request contains them again, so servers store no state between turns. A
    turn is contiguous if its prompt begins with exactly the ids of the previous turn (prompt and generation). Otherwise
    the trace records the first difference as a break, and a new segment starts, whose last turn contains the ids of the
    complete segment.
    """

    def __init__(self, request: Json, recorded: list[Json]) -> None:
        self.last = last_turn(recorded)
        """The turn that the new one should continue; None at the start of an episode."""
        self.messages = [
            {key: value for key, value in message.items() if key not in TOKEN_FIELDS}
            if "generation_token_ids" in message
            else message
            for message in recorded
        ]
        self._recorded = recorded
        self._fingerprint = Fingerprint(request)
        self._known = self.last.index + 1 if self.last else 0
        fingerprint = self._fingerprint.add(self.messages[: self._known])
        self.is_changed = self.last is not None and self.last.trace.get("context", fingerprint) != fingerprint
        """Whether tools, template arguments or earlier messages were edited after the last turn was recorded."""

    def with_ids(self, messages: list[Json]) -> list[Json]:
        return [
            {**message, **{key: recorded[key] for key in TOKEN_FIELDS if key in recorded and key != "token_trace"}}
            for message, recorded in zip(messages, self._recorded, strict=True)
        ]

    def trace(self, message: Json, reason: str) -> TokenTrace:
        """Return the trace of the turn that ends with `message`. `reason`: why it was sent as messages, if it was."""
        found = self.last.trace.get("segment") if self.last else 0
        trace: TokenTrace = {"segment": found if isinstance(found, int) else 0}
        # A prompt sent as ids was built from those of the turn before, so it cannot differ.
        if self.last and reason:
            mismatch = find_prefix_mismatch(self.last.ids, message["prompt_token_ids"], reason)
            if mismatch:
                trace = {"segment": trace["segment"] + 1, "break": mismatch}
        trace["context"] = self._fingerprint.add([*self.messages[self._known :], message])
        return trace


def last_turn(messages: list[Json]) -> TokenTurn | None:
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        prompt, generated = message.get("prompt_token_ids"), message.get("generation_token_ids")
        if isinstance(prompt, list) and isinstance(generated, list) and (prompt or generated):
            trace = message.get("token_trace")
            return TokenTurn(index, prompt + generated, trace if isinstance(trace, dict) else {})
    return None


def without_traces(messages: list[Json]) -> list[Json]:
    """Return the messages without their `token_trace`, for engines that read the other token fields."""
    return [
        {key: value for key, value in message.items() if key != "token_trace"} if "token_trace" in message else message
        for message in messages
    ]


_USER: Json = {"role": "user", "content": "x"}
_OTHER = '{"y": ["y"]}.\n\n</y>\n## y'
"""Placeholder text that ends in a character other than "x" and contains the punctuation of ordinary text and tool
calls."""
MAX_CACHED = 1024
_TEMPLATE = ("tools", "chat_template", "chat_template_kwargs", "reasoning_effort", "documents")


@dataclass(frozen=True, slots=True)
class TurnEnding:
    """How the chat template ends the model turn in a placeholder conversation."""

    token: int
    count: int
    """Which occurrence of the token ends the placeholder turn."""


class Continuation:
    """Builds the prompts of later turns, and caches how each template ends a turn.

    Only the new messages are rendered, by the engine's own chat template; the history is not tokenized again. To get
    their ids, the template renders a short placeholder conversation followed by the new messages. The token that ends a
    model turn (`<|im_end|>` in ChatML) is found by rendering two placeholder conversations that differ only in the
    model's text: it is the first token of their common suffix. The new messages start after the end of the placeholder
    turn. Templates that treat the model's latest turn specially (Qwen3 drops earlier reasoning) change only what
    precedes it.
    """

    def __init__(self) -> None:
        self._endings: dict[bytes, TurnEnding | None] = {}

    async def prompt(
        self, backend: TokenBackend, before: TokenTurn, body: Json, request_context: RequestContext
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

    async def ending(self, backend: TokenBackend, body: Json, request_context: RequestContext) -> TurnEnding | None:
        key = orjson.dumps([body.get(name) for name in _TEMPLATE])
        if key not in self._endings:
            one = await backend.render(body, [_USER, _placeholder("x")], request_context, ask=False)
            two = await backend.render(body, [_USER, _placeholder(_OTHER)], request_context, ask=False)
            if len(self._endings) >= MAX_CACHED:
                self._endings.clear()
            self._endings[key] = _shared_ending(one.ids, two.ids)
        return self._endings[key]


def _shared_ending(one: list[int], two: list[int]) -> TurnEnding | None:
    """Return the token that starts the common suffix of two renderings; None if it also occurs in ordinary text.

    The contents end in different characters, so the suffix belongs to the template.
    """
    backwards = zip(reversed(one), reversed(two), strict=False)
    shared = [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], backwards)]
    # A token that also occurs in ordinary text (a newline) could be found inside a call or reasoning instead.
    if not shared or one.count(shared[-1]) != two.count(shared[-1]):
        return None
    return TurnEnding(shared[-1], one.count(shared[-1]))


def _placeholder(text: str, message: Json | None = None) -> Json:
    """Return a placeholder for a model turn. It keeps the calls' names and ids, because tool results refer to them."""
    calls = []
    for call in (message or {}).get("tool_calls") or ():
        function = call.get("function")
        name = sendable_name(read_name(function.get("name"))) if isinstance(function, dict) else UNNAMED
        calls.append({"id": call.get("id"), "type": "function", "function": {"name": name, "arguments": "{}"}})
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


EXCERPT = 8
"""Maximum number of ids recorded from each sequence, starting at the mismatch."""


def first_difference(expected: list[int], found: list[int]) -> int | None:
    """Return the first position at which `found` differs from `expected`; None if `found` begins with `expected`."""
    if found[: len(expected)] == expected:
        return None
    return next((at for at, pair in enumerate(zip(expected, found, strict=False)) if pair[0] != pair[1]), len(found))


def find_prefix_mismatch(expected: list[int], prompt: list[int], reason: str) -> PrefixMismatch | None:
    at = first_difference(expected, prompt)
    if at is None:
        return None
    return {
        "reason": reason,
        "position": at,
        "expected_length": len(expected),
        "prompt_length": len(prompt),
        "expected": expected[at : at + EXCERPT],
        "found": prompt[at : at + EXCERPT],
    }


class Fingerprint:
    """A running hash of a request's tools, its template arguments and the messages added so far.

    It omits what the conversion to Responses items and back can change: call ids, reasoning, surrounding whitespace.
    """

    def __init__(self, request: Json) -> None:
        beginning = orjson.dumps([request.get("tools"), request.get("chat_template_kwargs")])
        self._hash = hashlib.sha256(beginning)

    def add(self, messages: list[Json]) -> str:
        for message in messages:
            self._hash.update(orjson.dumps(_essence(message)))
        return self._hash.hexdigest()[:24]


def _essence(message: Json) -> list[Any]:
    content = message.get("content") or ""
    if isinstance(content, str):
        if message.get("role") == "assistant":
            # The content may contain reasoning, which has no end tag if it was truncated.
            content = content.rpartition("</think>")[2].partition("<think>")[0]
        content = content.strip()
    calls = message.get("tool_calls")
    return [message.get("role"), content, [_normalized_call(call) for call in calls] if calls else []]


def _normalized_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call  # the engine rejects it with its own message
    # Normalized to the form of a sendable call, because a server in between may have normalized it.
    arguments = sendable_arguments(read_arguments(function.get("arguments")))
    return [sendable_name(read_name(function.get("name"))), arguments]


_ID = re.compile(r"token_id:\d+")
"""What vLLM writes in place of a text with --return-tokens-as-token-ids."""
_REPLACEMENT = "\ufffd"


def token_texts(choice: Json, count: int) -> list[str]:
    """Return the text of each of the choice's `count` tokens; empty if the engine did not report all of them.

    If the engine reports the bytes of tokens that contain only a part of a character, the whole character is the text
    of its last token, and the others have an empty text. Otherwise, they contain U+FFFD.
    """
    entries = [mapping(entry) for entry in items(mapping(choice.get("logprobs")).get("content"))]
    texts = [text for entry in entries if isinstance(text := entry.get("token"), str) and not _ID.fullmatch(text)]
    if len(texts) != count or len(entries) != count:
        return []
    if not any(_REPLACEMENT in text for text in texts):
        return texts
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        decoded = [decoder.decode(bytes(entry.get("bytes") or ())) for entry in entries]
    except (TypeError, ValueError):  # not a list of bytes
        return texts
    decoded[-1] += decoder.decode(b"", final=True)
    return decoded if "".join(decoded).count(_REPLACEMENT) < "".join(texts).count(_REPLACEMENT) else texts
