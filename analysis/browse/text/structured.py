"""Shows the arguments and results of tools: JSON objects field by field, anything else as it is."""

from __future__ import annotations

from typing import Any

import orjson
from textual.strip import Strip

from rollyard.analysis.browse.text.typesetter import Typesetter
from rollyard.analysis.browse.text.visible import visible
from rollyard.analysis.viewer.untrusted_values import sanitize
from rollyard.records.io.jsonl import lenient

_MAX_LENGTH = 50_000
_MAX_KEYS = 30


def structured(text: str, setter: Typesetter) -> list[Strip]:
    """Return the lines of a text that may be a JSON object."""
    fields = _fields(text)
    if fields is None:
        return setter.verbatim(text)
    return setter.pairs((key, _text(value), None) for key, value in fields.items())


def _fields(text: str) -> dict[str, Any] | None:
    if len(text) > _MAX_LENGTH or not text.lstrip().startswith("{"):
        return None
    try:
        value = sanitize(lenient(text.encode("utf-8", "replace")))
    except ValueError:
        return None
    return value if isinstance(value, dict) and 0 < len(value) <= _MAX_KEYS else None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return visible(value)
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()
