"""Answers, both ways: a chat completion as a Response, a Response as a chat completion."""

from __future__ import annotations

import time
import uuid
from typing import Any

from responses_api_models.convert_items import Dialect, as_text
from responses_api_models.convert_requests import wants_logprobs
from responses_api_models.thinking import split_thinking
from services.errors import Failure, FailureKind
from services.types import TOKEN_FIELDS, Json

_ECHOED = (
    {"instructions", "metadata", "temperature", "top_p", "max_output_tokens", "reasoning", "text", "truncation"}
    | {"user", "top_logprobs"}
)  # fmt: skip
"""What a Response repeats of its request."""
_ANSWER_KEYS = {"id", "object", "created", "model", "choices", "usage", "prompt_token_ids"}
_MESSAGE_KEYS = frozenset(
    {"role", "content", "tool_calls", "reasoning", "reasoning_content", "refusal", "annotations", *TOKEN_FIELDS}
)
_CALL_KEYS = frozenset({"id", "type", "function", "index"})
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}
_BROKEN = ("abort", "error")
"""vLLM's words for a generation that it gave up, e.g. for a weight update: no turn of the model."""
_NO_INPUT_DETAILS = {"cached_tokens": 0, "cache_write_tokens": 0}
_DEFAULT = Dialect()


def malformed(what: str, answer: Any) -> Failure:
    """The failure for an answer that cannot be read, with an excerpt."""
    return Failure(FailureKind.MALFORMED_ANSWER, f"the endpoint's answer {what}: {str(answer)[:300]}")


def first_choice(answer: Json) -> tuple[Json, Json]:
    """The first choice and its message. Raises Failure malformed_answer, or upstream_error for a broken generation."""
    choices = answer.get("choices")
    if not choices or not isinstance(choices, list):
        raise malformed("has no choices", answer)
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise malformed("has a choice without a message", answer)
    check_whole(choice.get("finish_reason"))
    return choice, message


def check_whole(finish_reason: Any) -> None:
    """Raises Failure upstream_error for a generation that the engine gave up."""
    if finish_reason in _BROKEN:
        told = f"the engine broke the generation off (finish_reason {finish_reason!r})"
        raise Failure(FailureKind.UPSTREAM_ERROR, told)


def chat_to_response(answer: Json, request: Json, dialect: Dialect = _DEFAULT) -> Json:
    """A chat completion as the Response to the Responses create request `request`."""
    choice, message = first_choice(answer)
    try:
        return _response(answer, choice, message, request, dialect)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise malformed(f"has an unknown shape ({type(error).__name__}: {error})", answer) from error


def _response(answer: Json, choice: Json, message: Json, request: Json, dialect: Dialect) -> Json:
    serial = str(answer.get("id") or uuid.uuid4().hex).removeprefix("chatcmpl-")
    output = _output(message, serial, dialect, text_logprobs(choice) if wants_logprobs(request) else [])
    finish_last(output[-1], choice.get("finish_reason"), message)
    output[-1].update(token_fields(answer, choice, message))
    return response_around(output, {**answer, "id": serial}, request, choice.get("finish_reason"))


def finish_last(item: Json, finish_reason: Any, message: Json) -> None:
    """Put on a turn's last item what is said of the turn: that it was cut, and fields that no API knows."""
    if finish_reason in _INCOMPLETE:
        item["status"] = "incomplete"
    if extra := message.keys() - _MESSAGE_KEYS:  # e.g. OpenRouter's reasoning_details, which must be sent back
        item.update({key: message[key] for key in extra if message[key] and key not in item})


def response_around(output: list[Json], answer: Json, request: Json, finish_reason: Any) -> Json:
    """The Response that holds `output`; everything else is what `answer`, whose id is its serial, and `request` say."""
    reason = _INCOMPLETE.get(finish_reason or "")
    response = {key: value for key, value in answer.items() if key not in _ANSWER_KEYS and value is not None}
    response.update({key: request[key] for key in _ECHOED if request.get(key) is not None})
    response.update(
        id=f"resp_{answer['id']}",
        object="response",
        created_at=answer.get("created") or int(time.time()),
        status="incomplete" if reason else "completed",
        error=None,
        incomplete_details={"reason": reason} if reason else None,
        model=answer.get("model") or request.get("model") or "",
        output=output,
        parallel_tool_calls=request.get("parallel_tool_calls") is not False,
        tool_choice=request.get("tool_choice") or "auto",
        tools=request.get("tools") or [],
        usage=_response_usage(answer.get("usage")),
    )
    return response


def _output(message: Json, serial: str, dialect: Dialect, logprobs: list[Json]) -> list[Json]:
    """The message's items, at least one: reasoning, what was said, calls."""
    output: list[Json] = []
    content = text_of(message.get("content"))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if dialect.think_tags and content and not reasoning:
        reasoning, content = split_thinking(content)
    if reasoning:
        summary = [{"type": "summary_text", "text": reasoning}]
        output.append({"id": f"rs_{serial}", "type": "reasoning", "summary": summary, "status": "completed"})
    calls, refusal = message.get("tool_calls"), message.get("refusal")
    if content or refusal or not (calls or output):
        parts: list[Json] = []
        if content or not refusal:
            annotations = [annotation(entry) for entry in message.get("annotations") or ()]
            text = {"type": "output_text", "text": content, "annotations": annotations, "logprobs": logprobs}
            parts.append(text)
        if refusal:
            parts.append({"type": "refusal", "refusal": refusal})
        said = {"id": f"msg_{serial}", "type": "message", "role": "assistant", "status": "completed", "content": parts}
        output.append(said)
    for index, call in enumerate(calls or ()):
        output.append(call_item(call, f"fc_{serial}_{index}"))
    return output


def text_of(content: Any) -> str:
    """The content of a message as one text."""
    if isinstance(content, list):
        return "".join([part.get("text") or "" for part in content if isinstance(part, dict)])
    if content is not None and not isinstance(content, str):
        raise malformed("has content that is no text", content)
    return content or ""


def call_item(call: Any, item_id: str) -> Json:
    """A tool call as an item."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise malformed("has a tool call without a function name", call)
    item = {
        "id": item_id,
        "type": "function_call",
        "call_id": call.get("id") or f"call_{uuid.uuid4().hex}",
        "name": function["name"],
        "arguments": as_text(function.get("arguments", "")),
        "status": "completed",
    }
    if extra := call.keys() - _CALL_KEYS:
        item.update({key: call[key] for key in extra if call[key] is not None})
    return item


def annotation(entry: Json) -> Json:
    """A chat message's annotation as it stands on an output text."""
    kind = entry["type"]
    return {**entry[kind], "type": kind} if kind in entry else entry


def token_fields(answer: Json, choice: Json, message: Json) -> Json:
    """The engine's own token ids and log-probabilities under NeMo Gym's names; empty when it sent none."""
    if "generation_token_ids" in message:
        return {key: message[key] for key in TOKEN_FIELDS if key in message}
    prompt = answer.get("prompt_token_ids")
    generated = choice.get("token_ids")
    if prompt is None or generated is None:
        return {}
    fields = {"prompt_token_ids": prompt, "generation_token_ids": generated}
    entries = (choice.get("logprobs") or {}).get("content")
    if entries is not None:
        if len(entries) != len(generated):
            raise malformed(f"has {len(generated)} token ids but {len(entries)} logprobs", choice)
        fields["generation_log_probs"] = [entry["logprob"] for entry in entries]
    return fields


def text_logprobs(choice: Json) -> list[Json]:
    """A choice's logprobs as they stand on an output text."""
    entries = (choice.get("logprobs") or {}).get("content") or []
    return [{**entry, "bytes": entry.get("bytes") or [], "top_logprobs": _top(entry)} for entry in entries]


def _top(entry: Json) -> list[Json]:
    return [{**top, "bytes": top.get("bytes") or []} for top in entry.get("top_logprobs") or ()]


def _response_usage(usage: Json | None) -> Json | None:
    if not usage:
        return None
    read, written = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {**_NO_INPUT_DETAILS, **_given(usage.get("prompt_tokens_details"))},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0, **_given(usage.get("completion_tokens_details"))},
        "total_tokens": usage.get("total_tokens") or read + written,
    }


def _given(details: Json | None) -> Json:
    return {key: value for key, value in details.items() if value is not None} if details else {}


def response_to_chat(response: Json) -> Json:
    """A Response as a chat completion with one choice."""
    if response.get("status") == "failed":
        reason = (response.get("error") or {}).get("message", "no reason given")
        raise Failure(FailureKind.UPSTREAM_ERROR, f"the endpoint's response failed: {reason}")
    message: Json = {"role": "assistant", "content": None, "refusal": None}
    choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    completion: Json = {
        "id": "chatcmpl-" + str(response.get("id") or uuid.uuid4().hex).removeprefix("resp_"),
        "object": "chat.completion",
        "created": int(response.get("created_at") or time.time()),
        "model": response.get("model") or "",
        "choices": [choice],
    }
    for item in response.get("output") or ():
        _add_item(message, choice, item)
        if "generation_token_ids" in item:
            message.update({key: item[key] for key in TOKEN_FIELDS if key in item})
    reason = (response.get("incomplete_details") or {}).get("reason")
    if reason:
        choice["finish_reason"] = _FINISH.get(reason, "stop")
    elif "tool_calls" in message:
        choice["finish_reason"] = "tool_calls"
    if usage := response.get("usage"):
        completion["usage"] = {
            "prompt_tokens": usage["input_tokens"],
            "completion_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens_details": usage.get("output_tokens_details"),
        }
    return completion


def _add_item(message: Json, choice: Json, item: Json) -> None:
    kind = item.get("type")
    if kind == "message":
        for part in item["content"]:
            if part["type"] == "refusal":
                message["refusal"] = (message["refusal"] or "") + part["refusal"]
                continue
            message["content"] = (message["content"] or "") + part["text"]
            if part.get("logprobs"):
                choice["logprobs"] = {"content": part["logprobs"], "refusal": None}
    elif kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        message.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
    elif kind == "reasoning":
        text = "\n".join([part["text"] for part in item.get("content") or item.get("summary") or ()])
        message["reasoning_content"] = (
            f"{message['reasoning_content']}\n{text}" if "reasoning_content" in message else text
        )
