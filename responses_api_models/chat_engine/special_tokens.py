"""Escapes or refuses special tokens that are spelled out in text: `<|im_end|>` in a tool result would end a turn.

An engine's tokenizer reads the name of a special token as that token anywhere in a prompt, so a tool result, the text
of a row or the description of a tool could end turns and start new ones. Each candidate is checked with the engine
once: /tokenize shows whether it is a single token, and a completion restricted to that token shows whether it is
special, because the returned text does not include special tokens. Markers that are ordinary text for the model, such
as `<think>` in Qwen's vocabulary, are not changed, and text without special tokens reaches the engine unchanged.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from typing import Any, Literal

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream

log = logging.getLogger(__name__)

Treatment = Literal["escape", "refuse", "allow"]
_LOOKS = (
    r"<[^<>\s]{1,64}>",  # <|im_end|>, </s>, <start_of_turn>, DeepSeek's <｜User｜>
    r"\[[/|~A-Za-z][^\[\]\s\"',;:.]{1,40}\]",  # [INST], [/INST], [gMASK], [|endofturn|]
    r"\]~[^\]\s]{1,8}\]?",  # MiniMax's ]~b]
    r"\[[a-z]~\[",  # and its [e~[
)
"""Patterns that special tokens match; tokens that match none of them are not detected. Each pattern starts with a
literal character, which makes the search fast."""
_SHAPES = [re.compile(look) for look in _LOOKS]
_IN_JSON = [re.compile(re.sub(r",\d+}", ",}", look).encode()) for look in _LOOKS]
_MAY_JOIN = (b'"content":[', b"\\\\u")
"""Content in which a token can be split or escaped: message parts, and JSON inside JSON."""
_USUAL = re.compile(
    r"<\|[^<>\s]+\|>|<｜[^<>\s]+｜>|</?s>|<(bos|eos|pad|unk|mask|start_of_turn|end_of_turn|sop|eop)>"
    r"|\[/?(INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS|gMASK)\]"
)
"""Special tokens of well-known models, used if the engine does not support the lookup."""
MAX_CACHED = 10_000
AT_ONCE = 16
"""Number of names looked up per request, which must fit in the context of a small model."""
_CANNOT_TELL = (FailureKind.UPSTREAM_REFUSED, FailureKind.MALFORMED_ANSWER)


class SpecialTokens:
    def __init__(self, upstream: Upstream, settings: ChatEngineSettings) -> None:
        self._upstream = upstream
        self._model = settings.model
        self._trusted = settings.template_arguments
        default: Treatment = "escape" if settings.return_token_id_information else "allow"
        self._treatment: Treatment = settings.special_tokens_in_text or default
        self._known: dict[str, bool] = {}

    @property
    def allowed(self) -> bool:
        """Whether every text reaches the engine unchanged."""
        return self._treatment == "allow"

    async def treated(self, body: Json, request_context: RequestContext) -> tuple[Json, list[str]]:
        """Return the chat request to send, and the special tokens that were escaped in it.

        Raises Failure bad_request if the caller's text contains a special token and the setting is `refuse`, or if a
        tool's name or schema contains one, because escaping would change its meaning. Special tokens in the model's own
        output are escaped with both settings.
        """
        untrusted = self._untrusted(body)
        if self._treatment == "allow" or not (found := await self._found(untrusted, request_context)):
            return body, []

        def rewrite(path: str, text: str, source: Source) -> str:
            in_text = sorted((token for token in found if token in text), key=len, reverse=True)
            if in_text and (source == "schema" or (source == "caller" and self._treatment == "refuse")):
                found_text = f"{path}: found {in_text[0]!r}, which the engine's tokenizer reads as a special token"
                change = "change the text, or set special_tokens_in_text to escape"
                if source == "schema":
                    change = (
                        "tool names and schemas cannot be escaped: change them, or set special_tokens_in_text to allow"
                    )
                raise Failure(FailureKind.BAD_REQUEST, f"{found_text}; {change}")
            for token in in_text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
            return text

        rewritten_body = rewritten(untrusted, rewrite)
        if untrusted is not body:
            rewritten_body["chat_template_kwargs"] = {
                **body["chat_template_kwargs"],
                **rewritten_body["chat_template_kwargs"],
            }
        return rewritten_body, sorted(found)

    def _untrusted(self, body: Json) -> Json:
        """Return the body without the template arguments that come from the settings."""
        given = body.get("chat_template_kwargs")
        if not isinstance(given, dict):
            return body
        own = {key: value for key, value in given.items() if key not in self._trusted or self._trusted[key] != value}
        return {**body, "chat_template_kwargs": own}

    async def in_tools(self, body: Json, request_context: RequestContext) -> bool:
        """Return True if tools, documents or template arguments contain a special token and the setting allows it."""
        return self._treatment == "allow" and bool(
            await self._found(self._untrusted(body), request_context, tools_only=True)
        )

    async def _found(self, body: Json, request_context: RequestContext, *, tools_only: bool = False) -> set[str]:
        keys = ("tools", "documents", "chat_template_kwargs", *(() if tools_only else ("messages",)))
        encoded = orjson.dumps([body.get(key) for key in keys])
        if not any(mark in encoded for mark in _MAY_JOIN) and not any(shape.search(encoded) for shape in _IN_JSON):
            return set()
        candidates: set[str] = set()

        def look(path: str, text: str, source: Source) -> str:
            for shape in _SHAPES:
                candidates.update(shape.findall(text))
            return text

        (rewritten_tools if tools_only else rewritten)(body, look)
        return await self._special(candidates, request_context) if candidates else set()

    async def _special(self, candidates: set[str], request_context: RequestContext) -> set[str]:
        unknown = sorted(candidates - self._known.keys())
        usual: set[str] = set()
        for start in range(0, len(unknown), AT_ONCE):
            some = unknown[start : start + AT_ONCE]
            try:
                answers = await self._looked_up(some, request_context)
            except Failure as failure:
                if failure.kind not in _CANNOT_TELL:
                    raise
                log.warning(
                    "%s: cannot look up special tokens (%s); only those with well-known names are detected",
                    self._upstream,
                    failure,
                )
                usual.update(name for name in unknown[start:] if _USUAL.fullmatch(name))
                break
            if len(self._known) + len(answers) > MAX_CACHED:
                self._known.clear()
            self._known.update(answers)
        return usual | {name for name in candidates if self._known.get(name)}

    async def _looked_up(self, names: list[str], request_context: RequestContext) -> dict[str, bool]:
        """Return, for each name, whether it is a special token of the engine's tokenizer."""
        request = {"model": self._model, "prompt": "\n".join(names), "add_special_tokens": False}
        sent = orjson.dumps({**request, "return_token_strs": True})
        answer = await self._upstream.post("/../tokenize", sent, json_object, request_context)
        ids, texts = answer.get("tokens"), answer.get("token_strs")
        if not isinstance(ids, list) or not isinstance(texts, list):
            raise Failure(FailureKind.MALFORMED_ANSWER, "/tokenize returned no tokens")
        single = dict(zip(texts, ids, strict=False))
        return {name: name in single and await self._is_special(name, single[name], request_context) for name in names}

    async def _is_special(self, name: str, token: int, request_context: RequestContext) -> bool:
        body = {"model": self._model, "prompt": "x", "max_tokens": 1, "allowed_token_ids": [token]}
        body.update(temperature=1.0, skip_special_tokens=True, return_token_ids=True)
        try:
            answer = await self._upstream.post("/completions", orjson.dumps(body), json_object, request_context)
        except Failure as failure:
            if failure.kind not in _CANNOT_TELL:
                raise
            return _USUAL.fullmatch(name) is not None
        choice = (answer.get("choices") or [{}])[0]
        if choice.get("token_ids") != [token]:
            return _USUAL.fullmatch(name) is not None  # the engine does not support allowed_token_ids
        return not choice.get("text")


Source = Literal["caller", "model", "schema"]
"""Where a string comes from: the caller, the model in an earlier turn, or a name or schema that programs also read."""
Rewrite = Callable[[str, str, Source], str]
"""Maps the path of a string in the request, the string and its source to the new string."""
_NOT_TEXT = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs", "token_trace"})
"""Keys of a message whose values chat templates do not render."""
_PART_TEXTS = ("text", "refusal", "thinking", "name")
"""Keys that can contain the text of a content part. Parts without any of them are images, audio or files."""
_SOURCES: dict[str, Source] = {"role": "schema", "tools": "schema", "tool_call_id": "model"}
"""Keys of a message whose text does not come from the message's author: for example, the model generates tool call
ids."""
_PROSE = frozenset({"description", "title", "$comment"})
"""Keys of a tool or its JSON schema whose text is read only by the model, not by programs."""

MAX_LENGTH = 128
"""Number of characters at the end of earlier parts that are examined together with the next part of a message."""


def rewritten(body: Json, rewrite: Rewrite) -> Json:
    return rewritten_tools(_rewritten(body, "messages", rewrite, _message), rewrite)


def rewritten_tools(body: Json, rewrite: Rewrite) -> Json:
    """Rewrite only the tools, documents and template arguments, which precede the conversation."""
    tools = _rewritten(body, "tools", rewrite, lambda tool, path, apply: _nested(tool, path, apply, "schema"))
    body = _rewritten(tools, "documents", rewrite, lambda one, path, apply: _nested(one, path, apply, "caller"))
    arguments = body.get("chat_template_kwargs")
    if not isinstance(arguments, dict):
        return body
    return {**body, "chat_template_kwargs": _nested(arguments, "chat_template_kwargs", rewrite, "caller")}


def _rewritten(body: Json, key: str, rewrite: Rewrite, one: Callable[[Any, str, Rewrite], Any]) -> Json:
    if not isinstance(body.get(key), list):
        return body
    return {**body, key: [one(part, f"{key}[{at}]", rewrite) for at, part in enumerate(body[key])]}


def _message(message: Any, path: str, rewrite: Rewrite) -> Any:
    if not isinstance(message, dict):
        return message
    source: Source = "model" if message.get("role") == "assistant" else "caller"
    result: Json = {}
    for key, value in message.items():
        inside = f"{path}.{key}"
        if key in _NOT_TEXT or value is None:
            result[key] = value
        elif key == "content" and isinstance(value, list):
            result[key] = _parts(value, inside, rewrite, source)
        elif key == "tool_calls" and isinstance(value, list):
            result[key] = [_call(call, f"{inside}[{at}]", rewrite) for at, call in enumerate(value)]
        else:
            result[key] = _nested(value, inside, rewrite, _SOURCES.get(key, source))
    return result


def _parts(parts: list[Any], path: str, rewrite: Rewrite, source: Source) -> list[Any]:
    """Rewrite the parts of a message. Templates concatenate the parts, so a token can span two of them."""
    result: list[Any] = []
    before = ""
    for at, one in enumerate(parts):
        inside = f"{path}[{at}]"
        part = {"type": "text", "text": one} if isinstance(one, str) else one
        known = (key for key in _PART_TEXTS if isinstance(part, dict) and isinstance(part.get(key), str))
        if (key := next(known, None)) is None:
            result.append(part)
            before = ""
            continue
        part = _nested(part, inside, rewrite, source)
        text = part[key]
        if before and rewrite(f"{inside}.{key}", before + text, source) != before + text:
            text = f" {text}"
        result.append({**part, key: text})
        before = (before + text)[-MAX_LENGTH:]
    return result


def _call(call: Any, path: str, rewrite: Rewrite) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    inside, arguments = f"{path}.function", function.get("arguments")
    result = {key: _nested(value, f"{inside}.{key}", rewrite, "model") for key, value in function.items()}
    if isinstance(arguments, str):
        result["arguments"] = _arguments(arguments, f"{inside}.arguments", rewrite)
    others = {
        key: _nested(value, f"{path}.{key}", rewrite, "model") for key, value in call.items() if key != "function"
    }
    return {**others, "function": result}


def _arguments(text: str, path: str, rewrite: Rewrite) -> str:
    """Rewrite the arguments of a tool call, which remain valid JSON if a space is inserted into a string. Engines pass
    decoded values to templates, so characters that are escaped as \\u003c are decoded first.
    """
    if "\\u" in text:
        with contextlib.suppress(ValueError, TypeError):
            plain = orjson.dumps(orjson.loads(text)).decode()
            found = rewrite(path, plain, "model")
            return found if found != plain else text
    return rewrite(path, text, "model")


def _nested(value: Any, path: str, rewrite: Rewrite, source: Source) -> Any:
    if isinstance(value, str):
        return rewrite(path, value, source)
    if isinstance(value, list):
        return [_nested(one, f"{path}[{at}]", rewrite, source) for at, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, one in value.items():
        inner: Source = "caller" if key in _PROSE and isinstance(one, str) else source
        result[rewrite(f"{path}, a key", key, "schema")] = _nested(one, f"{path}.{key}", rewrite, inner)
    return result
