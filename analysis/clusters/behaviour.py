"""Describes what a rollout did, as terms that need no model: how it ended, loops, failed calls, the form of its answer.

A description is a fact about one row. Which of them distinguish a cluster is for `vectors.py` and `naming.py` to find.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import orjson

from rollyard.analysis.findings.answer_values import number_of
from rollyard.analysis.findings.behaviour.repeated_text import RepeatedText
from rollyard.analysis.findings.row_view import Call, RowView
from rollyard.records.io.json_values import is_number, mapping
from rollyard.records.verdict_fields import VerdictField

_ERROR = re.compile(
    r"error|exception|traceback|invalid|unknown|illegal|unexpected|not (?:a |an )?(?:valid|found|allowed|permitted)|"
    r"must be|missing|required|failed|failure|refused|denied|unavailable|timed? ?out|cannot|could not|no such",
    re.IGNORECASE,
)
_ERROR_TEXT = 300
_LOOP = 4
"""As in the finding `repeated_calls`: this many equal calls with equal results, in a third of all calls."""
_STEPS = (4, 16, 64, 256, 1024)
"""Counts from which a rollout has many calls, or a long answer. Terms are cumulative, so that neighbours are
similar."""
_MID_SENTENCE = re.compile(r"[\w,;:(\[{+\-*/=<&]$")
_MARKERS = (("\\boxed", "boxed answer"), ("####", "answer after ####"), ("```", "code block"))
_MAX_PARTS = 32
_RECORDED = frozenset({"success", "mask_sample"})


def behaviour_of(view: RowView, fields: Sequence[VerdictField]) -> Iterator[str]:
    """Yield the descriptions of a rollout, each once. `fields`: those that explain its reward."""
    yield from _ending(view)
    yield from _calls(view)
    yield from _answer(view)
    yield from _verdict(view, fields)


def error_text(output: str | None) -> str:
    """Return the line of a tool's output that reports an error; '' if none does. Boards and results are not errors."""
    if not output:
        return ""
    head = output[:2000]
    if head.lstrip().startswith("{"):
        head = _inner_text(output) or head
    return next((line.strip()[:_ERROR_TEXT] for line in head.splitlines()[:20] if _ERROR.search(line)), "")


def json_object(text: str) -> dict[str, object] | None:
    """Return a call's arguments; None if they are not a JSON object."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _inner_text(output: str) -> str:
    """Return the texts of a tool's JSON result, of which an error is usually one."""
    value = json_object(output) or {}
    named = [f"{key}: {inner}" for key, inner in value.items() if isinstance(inner, str) and inner]
    return "\n".join(named)


def _ending(view: RowView) -> Iterator[str]:
    details = mapping(mapping(view.row.get("response")).get("incomplete_details"))
    cut = "length" if details.get("reason") == "max_output_tokens" else ""
    if reason := (view.finish_reason or cut)[:40]:
        yield f"ended: {reason}"


def _calls(view: RowView) -> Iterator[str]:
    calls = view.calls
    if not calls:
        if view.tools:
            yield "no tool call"
        return
    yield "tool calls"
    yield from (f"{step} or more tool calls" for step in _STEPS if len(calls) >= step)
    seen = Counter((call.name, call.arguments, call.output) for call in calls if call.output is not None)
    if max(seen.values(), default=0) >= max(_LOOP, len(calls) / 3):
        yield "loop: same call, same result"
    if any(_is_unusable(call, view.tools) for call in calls):
        yield "unusable call"
    failed = sum(bool(error_text(call.output)) for call in calls)
    if failed:
        yield "a tool reported an error"
        if 2 * failed > len(calls):
            yield "most calls failed"


def _is_unusable(call: Call, tools: frozenset[str]) -> bool:
    return bool(tools and call.name not in tools) or json_object(call.arguments) is None


def _answer(view: RowView) -> Iterator[str]:
    text = view.final_message.strip()
    if not text:
        yield "no final message"
        return
    length = len(text.split())
    yield "a final message"
    yield from (f"final message of {step} or more words" for step in _STEPS if length >= step)
    if len(text) > 60 and _MID_SENTENCE.search(text) and not text[-1].isdigit():
        yield "ends mid-sentence"
    if RepeatedText().flags(view):
        yield "loop: same text"
    for marker, name in _MARKERS:
        if marker in text:
            yield name
    if text[0] in "{[" and text[-1] in "}]":
        yield "answer is JSON"
    if text.count("```") % 2:
        yield "code block is not closed"


def _verdict(view: RowView, fields: Sequence[VerdictField]) -> Iterator[str]:
    if view.extracted == "":
        yield "no answer extracted"
    elif view.extracted is not None and view.expected:
        yield _compared(view.extracted, view.expected)
    for field in fields:
        if field.role not in ("component", "tests", "outcome"):
            continue
        value = field.value(view.row)
        for name, inner in list(value.items())[:_MAX_PARTS] if isinstance(value, dict) else [("", value)]:
            if is_number(inner):
                label = " ".join(filter(None, [field.shown_label, str(name)[:40]]))
                yield f"{label}: {'above' if inner > 0 else 'at most'} 0"
    for key, value in view.row.items():
        if isinstance(value, bool) and not key.startswith("_") and key not in _RECORDED:
            yield f"{key}: {str(value).lower()}"


def _compared(extracted: str, expected: str) -> str:
    given, gold = number_of(extracted), number_of(expected)
    if given is not None and gold is not None:
        return "another number than expected" if given != gold else "the expected number"
    if gold is not None:
        return "text instead of a number"
    return "the expected answer" if extracted.strip() == expected.strip() else "another answer than expected"
