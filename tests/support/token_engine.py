"""An engine with a tokenizer and a chat template, in this process: vLLM 0.32's six endpoints and scripted turns.

A scripted turn is the token ids that the model generates, whatever the prompt. The responses are modelled on those of a
real vLLM; tests/external/vllm verifies them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.request import Receive, Scope, Send
from tests.support.toy_tokenizer import END, ChatTemplate, decode, encode, encode_letters

_serials = itertools.count()
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"),
    *("stop", "stop_token_ids", "ignore_eos", "min_tokens", "allowed_token_ids", "logit_bias", "bad_words"),
)
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


class Refused(Exception):
    def __init__(self, message: str, status: int = 400, param: str | None = None) -> None:
        error = {"message": message, "type": "BadRequestError", "param": param, "code": status}
        self.body: Json = {"error": error}
        self.status = status


@dataclass
class TokenEngine:
    script: list[list[int]]
    """The generated tokens, turn by turn; the last turn repeats. A turn without the end token was cut off."""
    template: ChatTemplate = field(default_factory=ChatTemplate)
    has_token_endpoints: bool = True
    """Whether it offers the token-in endpoints."""
    returns_token_ids: bool = True
    """Whether it supports return_token_ids."""
    processed_logprobs: bool = True
    """Whether temperature is applied to its logprobs (vLLM's --logprobs-mode processed_logprobs)."""
    dead: bool = False
    """Whether it refuses connections."""
    max_model_len: int = 100_000
    stop_reason: str | int | None = None
    """The stop string or token id that ends each turn; None: the end token ends it."""
    finish_reason: str = ""
    """Replaces stop and length."""
    requests: list[tuple[str, Json]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    next_turns: Iterator[int] = field(default_factory=itertools.count)
    turns: int = 0
    """Requested turns, answered or not."""

    @property
    def paths(self) -> list[str]:
        return [path.rpartition("/")[2] for path, _ in self.requests]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.dead:
            raise Failure(FailureKind.UNREACHABLE, "no connection to the engine")
        path, body = scope["path"], orjson.loads((await receive())["body"] or b"{}")
        self.requests.append((path, body))
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        try:
            answer, status = self._answers(path)(body), 200
        except Refused as refused:
            answer, status = refused.body, refused.status
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": orjson.dumps(answer)})

    def _answers(self, path: str) -> Callable[[Json], Json]:
        scale_out = {
            "/v1/chat/completions/render": self._render,
            "/inference/v1/generate": lambda body: _PROBED if _is_probe(body) else self._generate(body),
            "/v1/chat/completions/derender": self._derender,
        }
        common = {"/v1/chat/completions": self._chat, "/tokenize": self._tokenize, "/v1/completions": self._complete}
        common["/detokenize"] = lambda body: {"prompt": decode(body["tokens"])}
        answers: dict[str, Callable[[Json], Json]] = {**common, **(scale_out if self.has_token_endpoints else {})}
        if path not in answers:
            raise Refused("Not Found", 404)
        return answers[path]

    def _prompt(self, body: Json) -> list[int]:
        ask, kwargs = body.get("add_generation_prompt", True), body.get("chat_template_kwargs") or {}
        return encode(self.template.render(body["messages"], body.get("tools"), ask=ask, **kwargs))

    def _turn(self, prompt: list[int]) -> tuple[list[int], str]:
        self.turns += 1
        if len(prompt) >= self.max_model_len:
            raise self._too_long(prompt)
        ids = self.script[min(next(self.next_turns), len(self.script) - 1)]
        stopped = self.stop_reason is not None or ids[-1:] == [END]
        return ids, self.finish_reason or ("stop" if stopped else "length")

    def _too_long(self, prompt: list[int]) -> Refused:
        return Refused(
            f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            f"the length of the input prompt. (parameter=input_tokens, value={len(prompt)})",
            param="input_tokens",
        )

    def _text(self, ids: list[int]) -> str:
        """The generated text without what ended it."""
        if isinstance(self.stop_reason, str):
            return decode(ids).partition(self.stop_reason)[0]
        return decode(ids if self.stop_reason is None and ids[-1:] != [END] else ids[:-1])

    def _chat(self, body: Json) -> Json:
        prompt = self._prompt(body)
        ids, reason = self._turn(prompt)
        message = _parsed(self._text(ids), body)
        known = self.returns_token_ids and body.get("return_token_ids")
        choice = {
            "index": 0,
            "message": message,
            "logprobs": {"content": [_entry(number) for number in ids]} if body.get("logprobs") else None,
            "finish_reason": "tool_calls" if message["tool_calls"] else reason,
            "stop_reason": self.stop_reason,
            "token_ids": ids if known else None,
        }
        serial = f"chatcmpl-{len(self.requests)}"
        answer = {"id": serial, "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
        return {**answer, "usage": _usage(prompt, ids), "prompt_token_ids": prompt if known else None}

    def _render(self, body: Json) -> Json:
        if self.max_model_len <= len(self._prompt(body)):
            raise self._too_long(self._prompt(body))
        params = {key: body[key] for key in _SAMPLING if body.get(key) is not None}
        params["max_tokens"] = body.get("max_tokens") or self.max_model_len
        if params["max_tokens"] == 16:
            del params["max_tokens"]  # as vLLM 0.32 does: it writes no defaults
        params["logprobs"] = body.get("top_logprobs") if body.get("logprobs") else None
        if grammar := _grammar(body):
            params["structured_outputs"] = {**grammar, "json_object": None, "disable_any_whitespace": False}
        serial = f"chatcmpl-{len(self.requests)}"
        return {"request_id": serial, "token_ids": self._prompt(body), "token_offsets": None, "model": "tiny"} | {
            "sampling_params": params,
            "stream": False,
        }

    def _generate(self, body: Json) -> Json:
        prompt = body["token_ids"]
        ids, reason = self._turn(prompt)
        entries = [{"token_id": number, "logprob": _log_prob(number), "rank": 1} for number in ids]
        content = [{**entry, "top_logprobs": [entry]} for entry in entries]
        choice: Json = {"index": 0, "finish_reason": reason, "stop_reason": self.stop_reason}
        choice["token_ids"] = ids if self.returns_token_ids else None
        choice["logprobs"] = {"content": content} if body["sampling_params"].get("logprobs") is not None else None
        answer = {"request_id": f"generate-tokens-{len(self.requests)}", "model": "tiny", "created": 1}
        return {**answer, "choices": [choice], "usage": _usage(prompt, ids), "output_mode": "tokens"}

    def _derender(self, body: Json) -> Json:
        generated = body["generate_response"]
        (choice,) = generated["choices"]
        ids = choice["token_ids"]
        if not ids:
            raise Refused("choice 0 has empty or null token_ids")
        numbered = (choice.get("logprobs") or {}).get("content")
        logprobs = {"content": [_entry(entry["token_id"]) for entry in numbered]} if numbered else None
        # With a tool parser vLLM keeps special tokens in the text.
        message = _parsed(decode(ids), body["chat_request"])
        # vLLM's derender does not set tool_calls: the finish_reason is that of the generation.
        parsed = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": choice["finish_reason"]}
        answer = {"id": generated["request_id"], "object": "chat.completion", "created": 2, "model": "tiny"}
        return {**answer, "choices": [parsed], "usage": _usage([0] * body["prompt_tokens"], ids)}

    def _tokenize(self, body: Json) -> Json:
        ids = encode(body["prompt"]) if "prompt" in body else self._prompt(body)
        texts = [decode([number]) for number in ids] if body.get("return_token_strs") else None
        return {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids, "token_strs": texts}

    def _complete(self, body: Json) -> Json:
        if isinstance(body["prompt"], str):
            allowed = body.get("allowed_token_ids")
            return _one_token(allowed[0]) if allowed else self._probe(body)
        ids, reason = self._turn(body["prompt"])
        texts = [decode([number]) for number in ids]
        log_probs = [_log_prob(number) for number in ids]
        logprobs = {"tokens": texts, "token_logprobs": log_probs, "text_offset": [0 for _ in ids]}
        logprobs["top_logprobs"] = [{text: value} for text, value in zip(texts, log_probs, strict=True)]
        choice = {"index": 0, "text": self._text(ids), "logprobs": logprobs, "finish_reason": reason}
        choice |= {"stop_reason": self.stop_reason, "token_ids": ids if self.returns_token_ids else None}
        answer = {"id": f"cmpl-{len(self.requests)}", "object": "text_completion", "created": 1, "model": "tiny"}
        return {**answer, "choices": [choice], "usage": _usage(body["prompt"], ids)}

    def _probe(self, body: Json) -> Json:
        value = -1.0 / (body["temperature"] if self.processed_logprobs else 1.0)
        logprobs = {"tokens": ["a"], "token_logprobs": [value], "top_logprobs": [{"a": value, "b": -5.0}]}
        choice = {"index": 0, "text": "a", "logprobs": logprobs, "finish_reason": "length", "token_ids": None}
        return {"id": f"cmpl-{len(self.requests)}", "object": "text_completion", "choices": [choice]}


def _parsed(text: str, request: Json) -> Json:
    """The message that vLLM's hermes tool parser and a <think> reasoning parser produce."""
    head, closing, rest = text.partition("</think>")
    thinks = closing or text.startswith("<think>")
    thought, text = (head.removeprefix("<think>"), rest) if thinks else (None, text)
    message: Json = {"role": "assistant", "content": text or None, "refusal": None, "reasoning": thought}
    message["tool_calls"] = []
    if request.get("tools") and "<tool_call>" in text:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            calls = [json.loads(found) for found in _CALL.findall(text)]
            functions = [{"name": call["name"], "arguments": json.dumps(call["arguments"])} for call in calls]
            message["tool_calls"] = [
                {"id": f"call_{next(_serials)}", "type": "function", "function": one} for one in functions
            ]
            message["content"] = text.partition("<tool_call>")[0] or None
    return message


def _grammar(body: Json) -> Json | None:
    """The constraint that vLLM derives from a chat request: strict or forced calls, else its structured_outputs."""
    choice, tools = body.get("tool_choice"), body.get("tools") or []
    strict = any(tool["function"].get("strict") for tool in tools)
    if tools and choice != "none" and (strict or choice not in (None, "auto")):
        return {"structural_tag": "{}"}
    explicit: Json | None = body.get("structured_outputs")
    return explicit


_PROBED: Json = {
    "request_id": "look",
    "choices": [{"index": 0, "token_ids": encode_letters("a"), "finish_reason": "length"}],
}


def _is_probe(body: Json) -> bool:
    """True for a health probe of one token, which does not consume a scripted turn."""
    return bool(body["sampling_params"] == {"max_tokens": 1, "ignore_eos": True})


def _one_token(number: int) -> Json:
    """A completion of this one token; a special token has no text."""
    choice = {"index": 0, "text": decode([number], special=False), "finish_reason": "length", "token_ids": [number]}
    return {"id": "cmpl-one", "object": "text_completion", "choices": [choice]}


def _log_prob(number: int) -> float:
    return -(number % 97) / 100


def _entry(number: int) -> Json:
    text = decode([number])
    return {"token": text, "logprob": _log_prob(number), "bytes": list(text.encode()), "top_logprobs": []}


def _usage(prompt: list[int], ids: list[int]) -> Json:
    return {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
