"""Token backends: the two APIs through which an engine accepts and returns token ids. Each renders messages, generates
from token ids and parses the generated text. `Capabilities` detects which of them an engine supports.

GenerateBackend       vLLM's own endpoints: /v1/chat/completions/render, /inference/v1/generate,
                      /v1/chat/completions/derender (all with --enable-scale-out); the engine parses the text
CompletionsBackend    /tokenize and /v1/completions, which all vLLM versions and many other engines support; this
                      module parses hermes tool calls from the text
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import SamplingRecord
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine import sampling
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.conversion import split_thinking
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.responses.policy_logprobs import LOWEST
from rollyard.services.responses.response_validity import check_finish, first_choice, malformed

log = logging.getLogger(__name__)
_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
QUESTION: Json = {"role": "user", "content": "x"}


@dataclass(frozen=True, slots=True)
class Rendered:
    ids: list[int]
    request: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Generated:
    ids: list[int]
    log_probs: list[float]
    completion: Json
    """The output as a chat completion, with parsed tool calls and reasoning."""
    sampling: SamplingRecord
    weight_versions: Any = None
    """The weight version of each span of generated tokens, if vLLM reports it."""


SEED_IDS = 16
"""Number of trailing prompt ids that the engine's detokenizer needs before the generation."""
_OF_RENDERING = ("token_offsets", "request_id")
"""Keys of a rendered request that a generate request must not contain."""


class GenerateBackend:
    name = "generate"
    names_versions = True
    """Whether the responses report the weight version of each token."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def check(self, model: str, request_context: RequestContext) -> None:
        """Call all three endpoints, because older vLLM versions have only the first one."""
        body: Json = {"model": model, "max_tokens": 1, "ignore_eos": True}
        rendered = await self.render(body, [QUESTION], request_context)
        request = {key: value for key, value in rendered.request.items() if key not in _OF_RENDERING}
        sent = orjson.dumps({**request, "sampling_params": {"max_tokens": 1, "ignore_eos": True}})
        answer = await self._upstream.post("/../inference/v1/generate", sent, _read_ids, request_context)
        await self.read(answer, rendered.ids, body, request_context)

    def unsupported_reason(self, body: Json) -> str:
        """Return why this backend does not support the chat request `body`; empty if it does."""
        return ""

    async def render(
        self, body: Json, messages: list[Json], request_context: RequestContext, *, ask: bool = True
    ) -> Rendered:
        """Render `messages` with the tools and template arguments of `body`; `ask`: with the generation prompt."""
        sent = orjson.dumps({**body, "messages": messages, "add_generation_prompt": ask})
        read = object_reader("token_ids")
        request = await self._upstream.post("/chat/completions/render", sent, read, request_context)
        return Rendered(request["token_ids"], request)

    async def generate(
        self, ids: list[int], rendered: Rendered, body: Json, request_context: RequestContext, *, texts: bool = False
    ) -> Generated:
        """Sample a turn from the prompt `ids`. `texts`: with logprobs that contain the text of each token."""
        request = {key: value for key, value in rendered.request.items() if key not in _OF_RENDERING}
        params = {key: value for key, value in request["sampling_params"].items() if key != "max_tokens"}
        # Without a limit in the request, the rendered one was computed from the rendered messages. Dropping it lets the
        # engine compute it from `ids`.
        if (limit := body.get("max_completion_tokens") or body.get("max_tokens")) is not None:
            # vLLM 0.32 omits a limit of 16, its default, from a rendered request, and treats a missing one as no limit.
            params["max_tokens"] = request["sampling_params"].get("max_tokens", limit)
        elif (room := request["sampling_params"].get("max_tokens")) and (
            ids == rendered.ids or params.get("min_tokens")
        ):
            # Where vLLM checks min_tokens against the limit, it treats a missing limit as 16.
            params["max_tokens"] = max(room + len(rendered.ids) - len(ids), 1)
        request["sampling_params"] = params
        request["token_ids"] = ids
        sent = orjson.dumps(request)
        path = "/../inference/v1/generate"
        answer, log_probs = await self._upstream.post(path, sent, _read_generated, request_context)
        choice = answer["choices"][0]
        generated = choice["token_ids"]
        if not texts:
            choice["logprobs"] = None
        completion = await self.read(answer, ids, body, request_context)
        # Only this usage includes the tokens cached by the engine; the derender endpoint does not report them.
        completion["usage"] = answer.get("usage") or completion.get("usage")
        finish(completion, body)
        sampling_record = sampling.of_engine(request["sampling_params"], body)
        return Generated(generated, log_probs, completion, sampling_record, choice.get("weight_versions"))

    async def read(self, answer: Json, ids: list[int], body: Json, request_context: RequestContext) -> Json:
        """Convert a response from /inference/v1/generate to a chat completion, using the engine's parsers."""
        choice = answer["choices"][0]
        # Most tool parsers cannot handle the text of the token that ended the turn.
        by_token = choice.get("finish_reason") == "stop" and not isinstance(choice.get("stop_reason"), str)
        turn_ids = choice["token_ids"][:-1] if by_token else choice["token_ids"]
        if not turn_ids:
            message = {"role": "assistant", "content": ""}
            empty = {"index": 0, "message": message, "finish_reason": choice.get("finish_reason")}
            about = {"object": "chat.completion", "created": answer.get("created"), "model": answer.get("model")}
            return {"id": answer.get("request_id"), **about, "choices": [empty]}
        parsing = {
            "model": body.get("model"),
            "generate_response": {**answer, "choices": [{**choice, "token_ids": turn_ids}]},
            "prompt_tokens": len(ids),
            "prompt_token_ids": ids[-SEED_IDS:],
            "chat_request": {**body, "messages": [{"role": "user", "content": ""}]},
        }
        sent, reader = orjson.dumps(parsing), object_reader("choices")
        completion = await self._upstream.post("/chat/completions/derender", sent, reader, request_context)
        if isinstance(stop := choice.get("stop_reason"), str):
            parsed, message = first_choice(completion)
            parsed["stop_reason"] = stop
            # The text ends at the stop string; its ids stay.
            kept = len(stop) * bool(body.get("include_stop_str_in_output"))
            key = next((key for key in ("content", "reasoning", "reasoning_content") if message.get(key)), None)
            if key is not None and stop in message[key]:
                message[key] = message[key][: message[key].rindex(stop) + kept]
        return completion


def _read_generated(body: bytes) -> tuple[Json, list[Any]]:
    """Parse a generate response; return it and the log-probability of each token.

    Raises Failure malformed_answer if it contains no tokens or unexpected logprobs.
    """
    answer = json_object(body)
    try:
        return answer, [entry["logprob"] for entry in logprobs_of(answer, "content")]
    except (KeyError, TypeError):
        raise malformed("has malformed logprobs", answer) from None


def _read_ids(body: bytes) -> Json:
    answer = json_object(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0].get("token_ids"), list):
        raise malformed("has no token_ids", answer)
    return answer


_CHAT_ONLY = frozenset(
    {"messages", "tools", "tool_choice", "parallel_tool_calls", "max_completion_tokens", "logprobs", "top_logprobs"}
    | {"chat_template", "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "metadata"}
)


class CompletionsBackend:
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
        sent = orjson.dumps(request)
        answer = await self._upstream.post("/../tokenize", sent, object_reader("tokens"), request_context)
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
        text = choice.get("text") or ""
        chat_choice = {
            "index": 0,
            "message": read_hermes(text) if self._expects_calls(body) else read_plain(text),
            "logprobs": {"content": _with_texts(choice["logprobs"])} if texts else None,
            "finish_reason": choice.get("finish_reason"),
            "stop_reason": choice.get("stop_reason"),
        }
        completion = {**answer, "object": "chat.completion", "choices": [chat_choice]}
        finish(completion, body)
        return Generated(generated, log_probs, completion, sampling.of_request(body, tools_constrain=False))


TokenBackend = GenerateBackend | CompletionsBackend


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


def finish(completion: Json, body: Json) -> None:
    """Adapt the completion to what the chat endpoint would return: the format of its id, the finish reason of a turn
    with tool calls, and only one call if parallel calls are disabled.
    """
    serial = str(completion.get("id") or "").removeprefix("generate-tokens-").removeprefix("cmpl-")
    completion["id"] = f"chatcmpl-{serial.removeprefix('chatcmpl-')}" if serial else None
    choice, message = first_choice(completion)
    calls, tool_choice = message.get("tool_calls"), body.get("tool_choice")
    if calls and body.get("parallel_tool_calls") is False:
        message["tool_calls"] = calls[:1]
    if calls and (
        tool_choice in (None, "auto") or (tool_choice == "required" and choice.get("finish_reason") == "stop")
    ):
        choice["finish_reason"] = "tool_calls"


def logprobs_of(answer: Json, key: str) -> list[Any]:
    """Return the logprob entries, one per token. Raises Failure malformed_answer if there are no tokens."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise malformed("has no choices", answer)
    check_finish(choice.get("finish_reason"))
    ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
    entries = logprobs.get(key) if isinstance(logprobs, dict) else None
    if not ids or not isinstance(ids, list) or not isinstance(entries, list):
        raise malformed("lacks token_ids or logprobs", answer)
    return entries


def object_reader(key: str) -> Callable[[bytes], Json]:
    """Return a parser for JSON objects, which raises Failure malformed_answer if `key` is missing or empty."""

    def read(body: bytes) -> Json:
        answer = json_object(body)
        if not answer.get(key):
            raise malformed(f"has no {key}", answer)
        return answer

    return read


_END = re.compile(r"\s*(?:<\|[^|<>]*\|>\s*)*\Z")
_DECODER = json.JSONDecoder(strict=False)  # models write line breaks in strings


def read_hermes(text: str) -> Json:
    """Parse hermes tool calls, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, into an assistant message.

    It is for engines that return plain text. What cannot be parsed as a call stays in the content.
    """
    message = read_plain(text)
    content: str = message["content"]
    before, opening, rest = content.partition(_OPENING)
    calls: list[Json] = []
    unreadable = ""
    while opening:
        found, rest = _calls(rest)
        calls += found
        # The end of the last object may be missing, but nothing else may be between it and the closing tag.
        inside, rest, opening = _rest_of_tag(rest)
        if not found or inside:
            unreadable += f"{_OPENING}{inside}{_CLOSING}"
    if not calls:
        return message
    return {**message, "content": before + unreadable or None, "tool_calls": calls}  # as in vLLM's own parser


def read_plain(text: str) -> Json:
    """Parse `text` into an assistant message with reasoning and content, but without tool calls."""
    reasoning, content = split_thinking(text)
    return {"role": "assistant", "content": content, **({"reasoning_content": reasoning} if reasoning else {})}


def _calls(text: str) -> tuple[list[Json], str]:
    """Return the calls at the start of the text, which is after an opening tag, and the text after them."""
    calls: list[Json] = []
    while True:
        start = text.lstrip(" \t\r\n,") if calls else text.lstrip()
        try:
            # Decoded and not searched for the closing tag, which can be part of a string.
            value, end = _DECODER.raw_decode(start)
        except (ValueError, RecursionError):
            return calls, text
        found = [_call(one) for one in (value if isinstance(value, list) else [value])]
        readable = [call for call in found if call is not None]
        if not readable or len(readable) < len(found):
            return calls, text
        calls += readable
        text = start[end:]


def _rest_of_tag(text: str) -> tuple[str, str, str]:
    """Return the text up to the end of a tag, the text after the next opening tag, and that tag if there is one."""
    inside, closing, after = text.partition(_CLOSING)
    if _OPENING in inside or not closing:  # the closing tag is missing
        inside, opening, after = text.partition(_OPENING)
    else:
        _, opening, after = after.partition(_OPENING)
    return "" if _END.match(inside) else inside, after, opening


def _call(call: Any) -> Json | None:
    try:
        name, given = call["name"], call.get("arguments", call.get("parameters"))
        # The same spacing as in vLLM, which models also generate.
        arguments = json.dumps({} if given is None else given, ensure_ascii=False)
        f"{name}{arguments}".encode()  # raises for a lone surrogate, which could not be encoded later
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(name, str):
        return None
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


RETRY_AFTER_S = 60.0
"""Seconds until a missing capability is checked again, because the engine may have gained it by then."""
UNKNOWN = "unknown"
_CANNOT = (FailureKind.UPSTREAM_REFUSED, FailureKind.MALFORMED_ANSWER)
"""Failures that show that the engine, or a proxy in front of it, lacks an endpoint."""


class Capabilities:
    def __init__(self, upstream: Upstream, settings: ChatEngineSettings) -> None:
        self._upstream = upstream
        self._settings = settings
        self._lock = asyncio.Lock()
        self._backend: TokenBackend | None = None
        self._backend_until = 0.0
        self._modes: dict[str | None, tuple[str, float]] = {}
        """Engine URL -> its logprobs mode, and the time until which the mode is valid."""

    async def backend(self, request_context: RequestContext) -> TokenBackend | None:
        if time.monotonic() >= self._backend_until:
            async with self._lock:
                if time.monotonic() >= self._backend_until:
                    self._backend, until = await self._find_backend(request_context)
                    self._backend_until = math.inf if until else time.monotonic() + RETRY_AFTER_S
        return self._backend

    async def logprobs_mode(self, request_context: RequestContext) -> str:
        """Return the detected --logprobs-mode of the engine that responded last.

        `raw_logprobs` are taken before temperature and top_p, `processed_logprobs` from the sampled distribution.
        Raises Failure upstream_refused if the engine returns logits, or if the mode differs from the setting.
        """
        if self._persistent_mode(request_context.url) is None:
            async with self._lock:
                if self._persistent_mode(request_context.url) is None:
                    found = await self._find_mode(request_context)
                    until = math.inf if found not in (None, UNKNOWN) else time.monotonic() + RETRY_AFTER_S * bool(found)
                    self._modes[request_context.url] = (found or UNKNOWN, until)
        found, required = self._modes[request_context.url][0], self._settings.logprobs_mode
        if found == UNKNOWN:
            return required or UNKNOWN
        if "logits" in found or (required and found != required):
            expected = required or "raw_logprobs or processed_logprobs"
            detail = f"{request_context.url} runs with --logprobs-mode {found}; expected {expected}; restart the "
            detail += "engine with that mode, or change the setting logprobs_mode"
            raise Failure(FailureKind.UPSTREAM_REFUSED, detail)
        return found

    def _persistent_mode(self, url: str | None) -> str | None:
        mode, until = self._modes.get(url, (None, 0.0))
        return mode if time.monotonic() < until else None

    async def _find_backend(self, request_context: RequestContext) -> tuple[TokenBackend | None, bool]:
        """Return the backend, and whether that is final: an engine that rejected a check may still be loading."""
        settings = self._settings
        if settings.token_in == "off" or settings.send_token_ids:
            return None, True
        generate = GenerateBackend(self._upstream)
        completions = CompletionsBackend(self._upstream, settings.text_tool_parser is not None)
        if settings.token_in == "completions":
            return completions, True
        try:
            await generate.check(settings.model, request_context)
        except Failure as failure:
            if failure.kind not in _CANNOT:
                raise
            if settings.token_in == "generate":
                detail = f"token_in is generate, but the engine has no token-in endpoints ({failure.problem.detail})"
                detail += "; start vLLM with --enable-scale-out"
                raise Failure(FailureKind.UPSTREAM_REFUSED, detail) from failure
            if self._backend is None:
                log.warning(
                    "%s: no token-in endpoints (vLLM: --enable-scale-out); falling back to token ids through "
                    "/v1/completions (with tools only if text_tool_parser is set); without /tokenize, every turn is "
                    "sent as messages",
                    self._upstream,
                )
        else:
            return generate, True
        try:
            await completions.check(settings.model, request_context)
        except Failure as failure:
            if failure.kind not in _CANNOT:
                raise
            return None, False
        return completions, False

    async def _find_mode(self, request_context: RequestContext) -> str | None:
        """Compare the top logprob of one prompt at two temperatures: raw logprobs do not depend on the temperature.

        Returns None if the engine could not be reached.
        """

        async def top_logprob(temperature: float) -> float:
            body: Json = {"model": self._settings.model, "prompt": "x", "max_tokens": 1, "logprobs": 1}
            body.update(temperature=temperature, top_p=1.0, top_k=-1)
            return await self._upstream.post("/completions", orjson.dumps(body), _top_logprob, request_context)

        try:
            one, two = await top_logprob(1.0), await top_logprob(2.0)
        except Failure as failure:
            log.warning("%s: could not detect the logprobs mode: %s", self._upstream, failure)
            return UNKNOWN if failure.kind in _CANNOT else None
        kind = "logprobs" if max(one, two) <= 0.0 else "logits"
        return f"raw_{kind}" if abs(one - two) < 1e-6 else f"processed_{kind}"


def _top_logprob(body: bytes) -> float:
    try:
        value = float(max(json_object(body)["choices"][0]["logprobs"]["top_logprobs"][0].values()))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise malformed(f"has no top logprobs ({type(error).__name__})", body[:200]) from error
    if not LOWEST < value < math.inf:
        raise malformed(f"has a top logprob of {value}; expected a finite number above {LOWEST:g}", body[:200])
    return value
