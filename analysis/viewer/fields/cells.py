"""Chooses the values that the list shows beside each rollout: prompt, fields that explain the reward, any field."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from rollyard.analysis.metrics.loader.computed_columns import COMPUTED
from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.analysis.viewer.fields.field_records import ColumnHead, VerdictValue
from rollyard.records.expressions.column import LARGEST_EXACT
from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.expressions.parse import ExpressionError, parse_field
from rollyard.records.io.json_values import items, mapping
from rollyard.records.rollouts.tokens.derived_fields import DERIVED
from rollyard.records.rollouts.tokens.derived_fields import reader_of as field_reader
from rollyard.records.types import Json
from rollyard.records.verdict_fields import ROLES, fields_of

PROMPT, VERDICT = "(prompt)", "(verdict)"
DEFAULT = f"{PROMPT},{VERDICT}"
MAX_COLUMNS = 24
_MAX_BYTES = 300
"""Maximum size of a value of the list, in characters or bytes of JSON."""
_MAX_SHOWN = 20_000
"""The same on the page of a rollout."""
_MAX_BITS = 1000
"""Maximum size of an integer that is shown with all digits."""
_NAME = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')
_PARTS_OF_REWARD = 8
"""Maximum number of parts of the reward that get a column."""
_MAX_PARTS = 100
"""The same on the page of a rollout."""


def requested(text: str) -> list[str]:
    """Return the names in a list of columns. Commas in quoted keys, as in `row["a,b"]`, separate nothing."""
    found = [name.strip() for name in _NAME.findall(text or DEFAULT)]
    return list(dict.fromkeys(filter(None, found)))[:MAX_COLUMNS]


def verdict_of(row: Mapping[str, Any], parts: int = _MAX_PARTS) -> list[VerdictValue]:
    """Return the fields that explain the row's reward, in the order of their roles. Objects of parts are
    divided; of each, the first `parts` are returned.
    """
    found: list[VerdictValue] = []
    for field in fields_of(row):
        value = field.value(row)
        if field.role == "component" and isinstance(value, Mapping):
            for key, part in list(value.items())[:parts]:
                name = sanitize(str(key))
                path = FieldPath((*field.keys, name))
                found.append(VerdictValue(path=str(path), label=name, role="component", value=shortened(part)))
        elif value is not None or field.path in row:
            path = FieldPath(field.keys, raw=field.path in (*COMPUTED, *DERIVED))
            kept = shortened(value, _MAX_SHOWN)
            found.append(VerdictValue(path=str(path), label=field.shown_label, role=field.role, value=kept))
    return found


def heads_of(names: Sequence[str], rows: Sequence[Mapping[str, Any] | None], known: Sequence[str]) -> list[ColumnHead]:
    """Return the columns that these names mean for the rows. `known`: names of columns that need no values.

    Raises ExpressionError if a name is not a field.
    """
    heads: dict[str, ColumnHead] = {}
    for name in names:
        if name == PROMPT:
            heads.setdefault(name, ColumnHead(path=name, label="prompt"))
        elif name == VERDICT:
            fields = {value.path: value for row in rows if row for value in verdict_of(row, _PARTS_OF_REWARD)}
            for value in sorted(fields.values(), key=lambda each: ROLES.index(each.role))[:MAX_COLUMNS]:
                heads.setdefault(value.path, ColumnHead(path=value.path, label=value.label, role=value.role))
        elif name.startswith("("):
            raise ExpressionError(f"{name} is not a column; expected {PROMPT}, {VERDICT} or a field such as reward")
        elif name not in known:
            field = parse_field(name)
            heads.setdefault(str(field), ColumnHead(path=str(field), label=str(field)))
    return list(heads.values())


def reader_of(head: ColumnHead) -> Callable[[Json], Any]:
    """Return a function that returns the value of the column in a row, shortened."""
    if head.path == PROMPT:
        return lambda row: shortened(prompt_of(row))
    read = field_reader(parse_field(head.path))
    return lambda row: shortened(read(row))


def prompt_of(row: Mapping[str, Any]) -> str:
    """Return the text of the last user message of the prompt; the task of most environments."""
    found = mapping(row.get("responses_create_params")).get("input")
    if isinstance(found, str):
        return found
    texts = [
        _text(item.get("content"))
        for item in items(found)
        if isinstance(item, dict) and item.get("role") in ("user", None) and "content" in item
    ]
    return next((text for text in reversed(texts) if text), "")


def shortened(value: Any, longest: int = _MAX_BYTES) -> Any:
    """Return the value as a page can show it, or a text that describes it if it is longer than `longest`.

    Large integers become texts, because a browser reads them as floats, and so do infinite numbers, which JSON lacks.
    """
    is_large = type(value) is int and abs(value) > LARGEST_EXACT and value.bit_length() <= _MAX_BITS
    if is_large or (type(value) is float and math.isinf(value)):
        return str(value)
    value = sanitize(value)
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}…"
    if isinstance(value, list | dict) and len(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)) > longest:
        return f"({'list' if isinstance(value, list) else 'object'} of {len(value)})"
    return value


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in items(content) if isinstance(part, dict)]
    return "\n".join(text for text in parts if isinstance(text, str))
