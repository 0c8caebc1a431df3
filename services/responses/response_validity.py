"""What counts as a turn of the model, and what is the empty answer of a broken engine: the one place that says so.

1. A generation that the engine gave up (finish_reason abort, error, timeout ...; status failed, cancelled) is a failed
   attempt, whatever it says; so is an answer that reports an error beside a text or a call, whatever its status.
2. An answer that says something (text, reasoning, a refusal, a call) is the model's.
3. An answer that says nothing is the model's own only where the engine vouches for it: it ended properly (stop, length)
   and counts at least one generated token, which the token that ends a turn is; or a content filter withheld it. White
   space is text where the generation ended properly.
4. Every other answer is a failed attempt: no choices, no message, no finish_reason and no text, `output: []` of a
   response that is still in progress, a stream that ends before any of it.

A failed attempt is tried again elsewhere and is never scored.
"""

from __future__ import annotations

import re
from typing import Any

from rollyard.services.errors import Failure, FailureKind
from rollyard.services.types import Json

_GIVEN_UP = re.compile(r"abort|error|cancel|fail|time_?(d_?)?out|disconnect|overload|unavailable|insufficient", re.I)
"""Words of engines for a generation that they gave up, e.g. for a weight update: no turn of the model."""
_PROPER = frozenset({"stop", "length", "eos", "eos_token", "end_turn", "stop_sequence", "max_tokens", "model_length"})
_WITHHELD = "content_filter"
_SPOKEN = ("reasoning", "reasoning_content", "reasoning_details", "refusal", "tool_calls", "function_call", "audio")
_UNFINISHED = frozenset({"failed", "in_progress", "queued", "cancelled", "expired"})
_CALLS = re.compile(r"_call$|_call_output$|^mcp_|^compaction$|^program")
"""Types of items that say something by being there: calls of tools, ours or the endpoint's, and what came of them."""
_INCOMPLETE = frozenset({"max_output_tokens", _WITHHELD})


def malformed(what: str, answer: Any) -> Failure:
    """The failure for an answer that cannot be read, with an excerpt."""
    return Failure(FailureKind.MALFORMED_ANSWER, f"the endpoint's answer {what}: {str(answer)[:300]}")


def check_finish(reason: Any) -> None:
    """Raises Failure upstream_error for a generation that the engine gave up."""
    if reason is not None and _GIVEN_UP.search(str(reason)):
        told = f"the engine broke the generation off (finish_reason {str(reason)[:100]!r})"
        raise Failure(FailureKind.UPSTREAM_ERROR, told)


def check_error(part: Json) -> None:
    """Raises Failure upstream_error for an answer, or a choice of one, that reports an error."""
    error = part.get("error")
    if not error and part.get("object") != "error":
        return
    told = error.get("message") or error if isinstance(error, dict) else error or part.get("message")
    raise Failure(FailureKind.UPSTREAM_ERROR, f"the endpoint's answer reports an error: {str(told)[:300]}")


def check_empty(finish_reason: Any, tokens: Any, shown: Any, *, blank: bool = False) -> None:
    """Raises Failure malformed_answer unless the engine vouches for an answer that says nothing.

    `tokens`: how many it counts as generated. `blank`: there is white space, which shows that some were.
    """
    if finish_reason == _WITHHELD:
        return
    if not isinstance(finish_reason, str) or finish_reason not in _PROPER:
        raise malformed(f"says nothing and did not end properly (finish_reason {str(finish_reason)[:100]!r})", shown)
    if not blank and not (isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0):
        raise malformed("says nothing, and no generated token is counted", shown)


def first_choice(answer: Json) -> tuple[Json, Json]:
    """The first choice of a chat completion and its message. Raises Failure where there is none, or it was given up."""
    check_error(answer)
    choices = answer.get("choices")
    if not choices or not isinstance(choices, list):
        raise malformed("has no choices", answer)
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise malformed("has a choice without a message", answer)
    check_error(choice)
    check_finish(choice.get("finish_reason"))
    return choice, message


def check_completion(answer: Json) -> tuple[Json, Json]:
    """The first choice of a chat completion and its message. Raises Failure: see the rule above."""
    choice, message = first_choice(answer)
    if not has_content(message):
        ids = choice.get("token_ids") or message.get("generation_token_ids")
        tokens = len(ids) if isinstance(ids, list) else _counted(answer.get("usage"), "completion_tokens")
        check_empty(choice.get("finish_reason"), tokens, answer, blank=bool(message.get("content")))
    return choice, message


def has_content(message: Json) -> bool:
    """True when a chat message, or a piece of one, holds anything of the model."""
    content = message.get("content")
    if isinstance(content, str):
        if content.strip():
            return True
    elif isinstance(content, list) and any(isinstance(part, dict) and part.get("text") for part in content):
        return True
    spoken = (message.get(key) for key in _SPOKEN)
    return any(value.strip() if isinstance(value, str) else value for value in spoken)


def check_response(response: Json) -> None:
    """Check a whole Response. Raises Failure: see the rule above."""
    status, output = response.get("status"), response.get("output")
    if isinstance(status, str) and status in _UNFINISHED:
        error = response.get("error")
        reason = error.get("message") if isinstance(error, dict) else error
        told = f"the response is {status}: {reason or 'no reason given'}"
        raise Failure(FailureKind.UPSTREAM_ERROR, told[:500])
    check_error(response)
    check_finish(status)
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        raise malformed("has no list of items as its output", {key: response[key] for key in sorted(response)})
    check_finish(response.get("finish_reason"))
    details = response.get("incomplete_details")
    reason = details.get("reason") if isinstance(details, dict) else None
    check_finish(reason)
    if any(_item_says_something(item) for item in output):
        return
    finish_reason: Any = status
    if status == "completed":
        finish_reason = "stop"
    elif status == "incomplete" and isinstance(reason, str) and reason in _INCOMPLETE:
        finish_reason = "length" if reason != _WITHHELD else _WITHHELD
    ids = output[-1].get("generation_token_ids") if output else None
    tokens = len(ids) if isinstance(ids, list) else _counted(response.get("usage"), "output_tokens")
    check_empty(finish_reason, tokens, response, blank=any(_texts(item) for item in output))


def _item_says_something(item: Json) -> bool:
    kind = item.get("type", "message")
    if isinstance(kind, str) and _CALLS.search(kind):
        return True
    return bool(item.get("encrypted_content")) or any(text.strip() for text in _texts(item))


def _texts(item: Json) -> list[str]:
    """The texts of a message's or a reasoning's parts that are not empty."""
    parts: list[Any] = []
    for group in (item.get("content"), item.get("summary")):
        parts += [{"text": group}] if isinstance(group, str) else group if isinstance(group, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str) and text]


def _counted(usage: Any, key: str) -> Any:
    return usage.get(key) if isinstance(usage, dict) else None
