from __future__ import annotations

import json
from typing import Any

from tests.external.nemo_gym.compatibility.catalog import Row
from tests.external.nemo_gym.compatibility.scripted_model import Items, Script, call, message, model_turns
from tests.external.nemo_gym.compatibility.scripts.answers import is_right

PLAIN: dict[str, Any] = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "null": None}
DEEPEST = 12
"""Nesting at which a recursive schema is cut."""


def instance(schema: dict[str, Any], depth: int = 0) -> Any:
    if "const" in schema or schema.get("enum"):
        return schema.get("const", (schema.get("enum") or [None])[0])
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return instance(schema[key][0], depth)
    kind = schema.get("type", "object")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: instance(part, depth + 1) for name, part in properties.items()} if depth < DEEPEST else {}
    if kind == "array":
        return [instance(schema.get("items") or {"type": "string"}, depth + 1)] * max(1, schema.get("minItems", 1))
    if kind == "string" and schema.get("format") == "date":
        return "2024-01-01"
    return PLAIN.get(kind, "x")


def in_schema(row: Row, number: int, history: Items) -> Items:
    """An instance of the row's schema as JSON, or in a call of the row's tool; every third row lacks a property."""
    if row.get("response_mode") == "tool_call":
        return [message("Done.")] if model_turns(history) else _in_call(row, number)
    value = instance(json.loads(row["schema_str"]))
    if not is_right(number) and isinstance(value, dict) and value:
        value.popitem()
    return [message(json.dumps(value))]


def _in_call(row: Row, number: int) -> Items:
    value = instance(json.loads(row["schema_str"]))
    key = row.get("tool_payload_key")
    if not is_right(number):
        value = {}
    return [call(row["tool_name"], {key: value} if key else value)]


def with_paths(row: Row, number: int, history: Items) -> Items:
    """JSON that has the keys which the row counts; every third row lacks half of them."""
    paths = row["raw_output_metric"]
    tree: Any = {}
    for path in paths if is_right(number) else paths[: len(paths) // 2]:
        _insert(tree, path.replace("[", ".[").split("."))
    return [message(f"<|BEGIN_CODE|>\n{json.dumps(tree)}\n<|END_CODE|>")]


def _insert(tree: dict[str, Any], path: list[str]) -> None:
    for name, following in zip(path, [*path[1:], ""], strict=True):
        if name.startswith("["):
            continue
        if following.startswith("["):
            items = tree.setdefault(name, [{}])
            tree = items[0] if isinstance(items, list) else items
        elif following:
            inner = tree.setdefault(name, {})
            tree = inner if isinstance(inner, dict) else tree
        else:
            tree.setdefault(name, "x")


STRUCTURES: dict[str, Script] = {"structured_outputs": in_schema, "structeval": with_paths}
