"""Generates arguments for a tool call from the JSON schema that the model sees."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from rollyard.records.types import Json

_UNCERTAIN = frozenset(
    {"pattern", "format", "not", "if", "multipleOf", "contains", "patternProperties", "dependentSchemas"}
)
"""Keywords that the generated values may violate."""
_WORDS = ("a", "one", "left", "hello", "7")
_MAX_DEPTH = 6


def is_certain(schema: Any) -> bool:
    """Return whether values generated from the schema are certain to be valid."""
    if isinstance(schema, list):
        return all(map(is_certain, schema))
    if not isinstance(schema, dict):
        return True
    return not _UNCERTAIN & schema.keys() and all(map(is_certain, schema.values()))


class ArgumentSampler:
    """Generates the arguments of one tool. The same random generator state gives the same arguments."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._root = parameters
        self.properties: Json = dict(parameters.get("properties") or {})
        self.required = tuple(name for name in parameters.get("required") or () if name in self.properties)

    def smallest(self) -> Json:
        """Return only the required arguments, with the smallest values."""
        return {name: self._value(self.properties[name], None, 0) for name in self.required}

    def complete(self, rng: Random) -> Json:
        """Return a random value for every argument."""
        return {name: self._value(schema, rng, 0) for name, schema in self.properties.items()}

    def _value(self, schema: Any, rng: Random | None, depth: int) -> Any:
        schema = self._resolved(schema) if depth <= 2 * _MAX_DEPTH else {}  # a recursive schema has no end
        if "const" in schema:
            return schema["const"]
        if enum := schema.get("enum"):
            return rng.choice(enum) if rng else enum[0]
        for key in ("anyOf", "oneOf"):
            if options := [one for one in schema.get(key) or () if self._resolved(one).get("type") != "null"]:
                return self._value(rng.choice(options) if rng else options[0], rng, depth + 1)
        if allowed := schema.get("allOf"):
            merged = {key: value for part in allowed for key, value in self._resolved(part).items()}
            return self._value({**merged, **{k: v for k, v in schema.items() if k != "allOf"}}, rng, depth + 1)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((one for one in kind if one != "null"), "null")
        return self._of_type(kind or ("object" if "properties" in schema else "string"), schema, rng, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], rng: Random | None, depth: int) -> Any:
        if kind in ("integer", "number"):
            return _number(schema, rng, whole=kind == "integer")
        if kind == "boolean":
            return bool(rng and rng.random() < 0.5)
        if kind == "null":
            return None
        if kind == "array":
            return self._array(schema, rng, depth)
        if kind == "object":
            names = (schema.get("properties") or {}) if rng and depth < _MAX_DEPTH else (schema.get("required") or ())
            known = schema.get("properties") or {}
            return {name: self._value(known.get(name, {}), rng, depth + 1) for name in names}
        text = rng.choice(_WORDS) if rng else ""
        text = text.ljust(int(schema.get("minLength") or 0), "a")
        return text[: int(schema.get("maxLength") or len(text))]

    def _array(self, schema: Mapping[str, Any], rng: Random | None, depth: int) -> list[Any]:
        least = int(schema.get("minItems") or 0)
        most = min(int(schema.get("maxItems") or least + 2), least + 2)
        count = rng.randint(least, max(least, most)) if rng and depth < _MAX_DEPTH else least
        fixed = list(schema.get("prefixItems") or ())[: max(count, least)]
        kinds = [*fixed, *[schema.get("items") or {}] * (count - len(fixed))]
        return [self._value(kind, rng, depth + 1) for kind in kinds]

    def _resolved(self, schema: Any) -> Mapping[str, Any]:
        """Follow `$ref` within this schema. Anything that is not a schema counts as one without restrictions."""
        for _ in range(_MAX_DEPTH):
            reference = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(reference, str) or not reference.startswith("#/"):
                break
            target: Any = self._root
            for part in reference[2:].split("/"):
                target = target.get(part, {}) if isinstance(target, Mapping) else {}
            schema = target
        return schema if isinstance(schema, Mapping) else {}


def _number(schema: Mapping[str, Any], rng: Random | None, *, whole: bool) -> int | float:
    step = 1 if whole else 0.5
    low, high = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        low = above + step if low is None else max(low, above + step)
    if (below := schema.get("exclusiveMaximum")) is not None:
        high = below - step if high is None else min(high, below - step)
    low = (0 if high is None or high >= 0 else high - 3) if low is None else low
    high = low + 3 if high is None else high
    if rng is None:
        return int(low) if whole else low
    return rng.randint(int(low), max(int(low), int(high))) if whole else round(rng.uniform(low, high), 3)
