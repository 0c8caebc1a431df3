"""Bounds the size of a partial conversation. The beginning and the end say most, so the middle is removed.

In this order, until it fits: tokens, the middle of long texts, large fields of the row, items from the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from rollyard.records.activity import Omitted
from rollyard.records.json_values import items, mapping
from rollyard.records.types import TOKEN_FIELDS, Json

_TEXT_SHARE = 16
"""A text longer than this fraction of the limit is shortened."""
_LEAST_TEXT = 200
_FIELD_SHARE = 4
"""The fields of the row may take this fraction of the limit."""
_FIXED_BYTES = 600
"""Bytes of the record around the row."""
_UNREADABLE = b'{"type":"unreadable"}'
"""Replaces an item that cannot be encoded, because it is nested too deeply."""


def shortened(fields: Json, start: Sequence[Any], output: Sequence[Any], limit: int) -> tuple[Json, Omitted | None]:
    """Return the row of `fields`, `start` and `output` in at most `limit` bytes, and what it lacks (None: nothing)."""
    limit = max(0, limit - _FIXED_BYTES)
    encoded = [encoded_item(item) for item in (*start, *output)]
    fields_encoded = _encoded_fields(fields)
    if _size(encoded) + _size(fields_encoded.values()) <= limit:
        return _row(fields_encoded, encoded, len(start)), None
    tokens = texts = 0
    conversation: list[Any] = []
    for item in (*start, *output):
        without = _without_tokens(item)
        tokens += without is not item
        short, cut = _cut(without, max(_LEAST_TEXT, limit // _TEXT_SHARE))
        texts += cut
        conversation.append(short)
    short_fields, cut = _cut(fields, max(_LEAST_TEXT, limit // _TEXT_SHARE))
    kept, removed = _fitting_fields(_encoded_fields(short_fields), limit // _FIELD_SHARE)
    encoded = [encoded_item(item) for item in conversation]
    head, tail = _ends(encoded, limit - _size(kept.values()))
    gap = len(encoded) - head - tail
    rest = encoded[:head] + encoded[len(encoded) - tail :]
    first_output = min(len(start), head) if len(start) < len(encoded) - tail else len(start) - gap
    omitted = Omitted(items=gap, after=head, texts=texts + cut, tokens=tokens, fields=removed)
    return _row(kept, rest, first_output), omitted


def _row(fields: dict[tuple[str, ...], bytes], encoded: Sequence[bytes], first_output: int) -> Json:
    row: Json = {}
    params: Json = {}
    for name, value in fields.items():
        (row if len(name) == 1 else params)[name[-1]] = orjson.loads(value)
    decoded = [orjson.loads(item) for item in encoded]
    params["input"] = decoded[:first_output]
    return {**row, "responses_create_params": params, "response": {"output": decoded[first_output:]}}


def _encoded_fields(fields: Json) -> dict[tuple[str, ...], bytes]:
    """Return the encoded value of each field, and of each create parameter, by its path."""
    params = mapping(fields.get("responses_create_params"))
    found: dict[tuple[str, ...], Any] = {
        (name,): value for name, value in fields.items() if name not in ("responses_create_params", "response")
    }
    found |= {("responses_create_params", name): value for name, value in params.items() if name != "input"}
    return {name: encoded_item(value) for name, value in found.items()}


def _fitting_fields(fields: dict[tuple[str, ...], bytes], limit: int) -> tuple[dict[tuple[str, ...], bytes], list[str]]:
    """Remove the largest fields until the others fit; return them, and the names of the removed ones."""
    kept, removed = dict(fields), list[str]()
    size = _size(kept.values()) + sum(len(name[-1]) + 4 for name in kept)
    for name in sorted(kept, key=lambda name: -len(kept[name])):
        if size <= limit:
            break
        size -= len(kept.pop(name)) + len(name[-1]) + 4
        removed.append(".".join(name)[:100])
    return kept, removed[:50]


def _ends(encoded: Sequence[bytes], limit: int) -> tuple[int, int]:
    """Return how many items of the beginning and of the end fit. The end gets what the beginning does not need."""
    head, used = 0, 0
    while head < len(encoded) and used + len(encoded[head]) + 1 <= limit // 2:
        used += len(encoded[head]) + 1
        head += 1
    tail = 0
    while tail < len(encoded) - head and used + len(encoded[-1 - tail]) + 1 <= limit:
        used += len(encoded[-1 - tail]) + 1
        tail += 1
    return head, tail


def _without_tokens(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    content = items(item.get("content"))
    if not any(name in item for name in TOKEN_FIELDS) and not any("logprobs" in mapping(part) for part in content):
        return item
    kept = {name: value for name, value in item.items() if name not in TOKEN_FIELDS}
    if content:
        kept["content"] = [
            {name: value for name, value in part.items() if name != "logprobs"} if isinstance(part, dict) else part
            for part in content
        ]
    return kept


def _cut(value: Any, longest: int) -> tuple[Any, int]:
    """Shorten all texts within `value` to about `longest` characters; return it, and the number of shortened texts."""
    if isinstance(value, str):
        return (value, 0) if len(value) <= longest else (_middle_removed(value, longest), 1)
    if isinstance(value, list):
        parts = [_cut(one, longest) for one in value]
        return [part for part, _ in parts], sum(cut for _, cut in parts)
    if isinstance(value, dict):
        pairs = {name: _cut(one, longest) for name, one in value.items()}
        return {name: part for name, (part, _) in pairs.items()}, sum(cut for _, cut in pairs.values())
    return value, 0


def _middle_removed(text: str, longest: int) -> str:
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters omitted ...]\n{text[-half:]}"


def encoded_item(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return _UNREADABLE


def _size(encoded: Any) -> int:
    return sum(len(one) + 1 for one in encoded)
