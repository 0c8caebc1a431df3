"""Fields that are computed from a whole row when they are asked for, by the names that expressions give them.

The index does not contain them, because it would have to add up the log-probabilities of all tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollyard.records.expressions.field_path import FieldPath
from rollyard.records.io.json_values import items, mapping
from rollyard.records.rollouts.tokens.model_calls import generated_log_probs

_MAX_VERSIONS = 100


def mean_log_prob(row: Mapping[str, Any]) -> float | None:
    """Return the mean log-probability of the generated tokens; None if none are recorded."""
    calls = list(generated_log_probs(row))
    count = sum(map(len, calls))
    return sum(map(sum, calls)) / count if count else None


def min_log_prob(row: Mapping[str, Any]) -> float | None:
    """Return the log-probability of the least likely generated token; None if none are recorded."""
    return min(map(min, generated_log_probs(row)), default=None)


def policy_versions(row: Mapping[str, Any]) -> list[str] | None:
    """Return the versions of the weights that sampled the episode, in order, each once; None if none are recorded."""
    found: dict[str, None] = {}
    for item in items(mapping(row.get("response")).get("output")):
        sampling = mapping(mapping(mapping(item).get("token_trace")).get("sampling"))
        spans = [mapping(span).get("version") for span in items(sampling.get("weight_versions"))]
        for version in (sampling.get("policy_version"), *spans, sampling.get("policy_version_end")):
            if version is not None and len(found) < _MAX_VERSIONS:
                found.setdefault(str(version))
    return list(found) or None


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "mean_log_prob": mean_log_prob,
    "min_log_prob": min_log_prob,
    "policy_versions": policy_versions,
}
DERIVED = tuple(_READERS)
"""Names of the derived fields."""


def reader_of(field: FieldPath) -> Callable[[Any], Any]:
    """Return a function that returns the value of the field in a row, which must be a JSON object."""
    if (derived := _READERS.get(field.column or "")) is not None:
        return derived
    if len(field.parts) == 1 and isinstance(name := field.parts[0], str):
        return lambda row: row.get(name)
    return field.value
