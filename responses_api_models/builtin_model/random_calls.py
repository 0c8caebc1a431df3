"""Calls tools that the policy has no plan for, with random arguments that match their schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.policy import Turn
from rollyard.responses_api_models.builtin_model.random_draws import RandomDraws

TURNS_PER_ANSWER = 8
"""On average, one in this many turns is a text answer instead of a tool call."""
RANGE = 100
"""Size of the range for numbers whose schema has no upper bound; the range starts at 0 if there is no lower bound
either."""
WORDS = ("yes", "no", "a", "b", "red", "blue", "one", "two", "left", "right")
MAX_DEPTH = 4
"""Nesting depth beyond which objects and lists get only required values, because a schema can refer to itself."""


def callable_tools(request: Json) -> list[Json]:
    """Return the function tools that the request allows the model to call."""
    choice = request.get("tool_choice")
    named = choice.get("name") if isinstance(choice, dict) else None
    if choice == "none":
        return []
    tools = [tool for tool in request.get("tools") or () if tool.get("type") == "function" and tool.get("name")]
    return [tool for tool in tools if named in (None, tool["name"])]


def random_turn(request: Json, tools: Sequence[Json], *, done: bool, draws: RandomDraws) -> Turn:
    """Return a call to one of `tools`, or occasionally a text answer. After the environment has returned `done`, always
    return a text answer.
    """
    must_call = request.get("tool_choice") not in (None, "auto")
    if done or (not must_call and draws.below(TURNS_PER_ANSWER) == 0):
        return Turn(None, f"The answer is {draws.below(RANGE)}.")
    tool = tools[draws.below(len(tools))]
    schema = tool.get("parameters") or {}
    arguments = _object(schema, schema.get("$defs") or {}, draws, 0)
    return Turn(orjson.dumps(arguments).decode(), name=tool["name"])


def _value(schema: Any, defs: Mapping[str, Any], draws: RandomDraws, depth: int) -> Any:
    if not isinstance(schema, dict):
        return None
    if isinstance(reference := schema.get("$ref"), str):
        return None if depth > 8 * MAX_DEPTH else _value(defs.get(reference.rpartition("/")[2]), defs, draws, depth + 1)
    for key in ("enum", "examples"):
        if isinstance(listed := schema.get(key), list) and listed:
            return listed[draws.below(len(listed))]
    if "const" in schema:
        return schema["const"]
    if branches := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return _value(branches[draws.below(len(branches))], defs, draws, depth)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[draws.below(len(kind))] if isinstance(kind, list) and kind else kind
    if kind in ("integer", "number"):
        return _number(schema, draws, whole=kind == "integer")
    if kind == "boolean":
        return draws.below(2) == 1
    if kind == "array":
        least = int(schema.get("minItems", 0))
        most = least if depth > MAX_DEPTH else min(int(schema.get("maxItems", least + 3)), least + 3)
        count = least + draws.below(most - least + 1)
        return [_value(schema.get("items"), defs, draws, depth + 1) for _ in range(count)]
    if kind == "object":
        return _object(schema, defs, draws, depth + 1)
    return None if kind == "null" else WORDS[draws.below(len(WORDS))]


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any], draws: RandomDraws, depth: int) -> Json:
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    chosen = [name for name in properties if name in required or (depth <= MAX_DEPTH and draws.below(2))]
    return {name: _value(properties[name], defs, draws, depth) for name in chosen}


def _number(schema: Mapping[str, Any], draws: RandomDraws, *, whole: bool) -> int | float:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    most = schema.get("maximum", schema.get("exclusiveMaximum", least + RANGE))
    if not whole:
        return float(least + (0.05 + 0.9 * draws.unit()) * (most - least))  # never a bound, which may be excluded
    first = int(least) + ("exclusiveMinimum" in schema)
    last = int(most) - ("maximum" not in schema)
    return first + draws.below(max(1, last - first + 1))
