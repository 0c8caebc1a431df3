"""Finds the fields of sampled rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from rollyard.analysis.metrics.loader.computed_columns import COMPUTED
from rollyard.analysis.viewer.fields.field_records import KeyInfo, Keys, Kind
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.notes.note_fields import NOTE_FIELDS
from rollyard.records.rollouts.tokens.derived_fields import DERIVED, reader_of
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.records.verdict_fields import VERDICT_FIELDS

MAX_KEYS = 400
MAX_NAME = 499
"""Longer names cannot be asked for: a sort key has at most 500 characters, one of which may be the sign."""
_MAX_DEPTH = 4
_MAX_EXAMPLE = 60
_LEFT_OUT = {
    ("responses_create_params", "input"),
    ("responses_create_params", "instructions"),
    ("responses_create_params", "tools"),
    ("response", "output"),
    ("response", "instructions"),
    ("response", "tools"),
    (VERDICT_FIELDS,),
    *((name,) for name in (*TOKEN_FIELDS, *COMPUTED, *DERIVED, *NOTE_FIELDS)),
}
"""The conversation, and keys with the name of a computed field or of a field of notes."""
_KINDS: dict[type, Kind] = {
    bool: "true or false",
    int: "number",
    float: "number",
    str: "text",
    list: "list",
    dict: "object",
}


def known_keys(rows: Sequence[Json]) -> Keys:
    """Return the fields of the rows, in the order in which rows contain them. Missing values (null) have no kind."""
    kinds: dict[tuple[str, ...], set[Kind]] = {}
    counts: dict[tuple[str, ...], int] = {}
    examples: dict[tuple[str, ...], Any] = {}
    for row in rows:
        for parts, value in _values(row, ()):
            if parts not in kinds and len(kinds) >= MAX_KEYS:
                continue
            found = kinds.setdefault(parts, set())
            counts[parts] = counts.get(parts, 0) + 1
            if value is not None:
                found.add(_KINDS.get(type(value), "mixed"))
                examples.setdefault(parts, value)
    names = {parts: str(FieldPath(parts)) for parts in kinds}
    keys = [
        KeyInfo(
            path=names[parts],
            kind=next(iter(found)) if len(found) == 1 else "mixed",
            share=counts[parts] / len(rows),
            example=_example(examples.get(parts)),
        )
        for parts, found in kinds.items()
        if len(names[parts]) <= MAX_NAME
    ]
    derived = [name for name in DERIVED if any(reader_of(FieldPath((name,)))(row) is not None for row in rows)]
    return Keys(computed=[*COMPUTED, *derived, *NOTE_FIELDS], keys=keys, sampled=len(rows))


def _values(value: Json, parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, inner in value.items():
        path = (*parts, key)
        if path in _LEFT_OUT:
            continue
        if isinstance(inner, dict) and inner and len(path) < _MAX_DEPTH:
            yield from _values(inner, path)
        else:
            yield path, inner


def _example(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
    return text if len(text) <= _MAX_EXAMPLE else f"{text[:_MAX_EXAMPLE]}…"
