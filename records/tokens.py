"""Reads the generated tokens of each model call from a rollout row, which is untrusted.

Two formats are read: the training fields of the last item of a model call (`generation_token_ids`, ...), and the
`logprobs` that an answer contains if the request has `include: ["message.output_text.logprobs"]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollyard.records.expression_parser import FieldPath
from rollyard.records.types import Json, items, mapping, number, text_of


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The generated tokens of a model call. A list is empty if it is not recorded or invalid."""

    ids: list[int]
    texts: list[str]
    """As the engine decoded each token alone: a token that contains only a part of a character is U+FFFD."""
    log_probs: list[float]
    entries: list[Json]
    """The elements of `logprobs`, one per token, with `top_logprobs` if the request asked for them."""
    trace: Any

    @property
    def count(self) -> int:
        return len(self.ids) or len(self.entries)


def model_calls(row: Mapping[str, Any]) -> Iterator[ModelCall]:
    """Yield the model calls whose tokens are recorded, in order."""
    for item in items(mapping(row.get("response")).get("output")):
        if is_from_model(item) and (call := model_call(item)) is not None:
            yield call


def generated_log_probs(row: Mapping[str, Any]) -> Iterator[list[float]]:
    """Yield the log-probabilities of each model call that has some, also where neither ids nor texts are recorded."""
    for item in items(mapping(row.get("response")).get("output")):
        if is_from_model(item) and (values := log_probs_of(item)):
            yield values


def is_from_model(item: Any) -> bool:
    """Return whether the item was written by the model, as opposed to the environment or the user."""
    content = mapping(item)
    kind = text_of(content.get("type"))
    return bool(content) and not kind.endswith(("_output", "_response")) and content.get("role") in (None, "assistant")


def model_call(item: Json) -> ModelCall | None:
    """Return the tokens of the model call that ends with this item; None if the item has none, or invalid ones."""
    entries, ids, trace = _entries(item), ids_of(item.get("generation_token_ids")), item.get("token_trace")
    if ids is None:
        if not entries:
            return None
        texts = [text_of(entry.get("token")) for entry in entries]
        return ModelCall([], texts, log_probs_of(item), entries, trace)
    entries = entries if len(entries) == len(ids) else []
    texts = _texts(mapping(trace).get("texts"), len(ids)) or [text_of(entry.get("token")) for entry in entries]
    return ModelCall(ids, texts, log_probs_of(item), entries, trace)


def log_probs_of(item: Json) -> list[float]:
    """Return the log-probabilities of the tokens of the model call that ends with this item.

    If one of them is invalid, or their number is not that of the token ids, return an empty list, because a gap would
    shift the others.
    """
    ids = ids_of(item.get("generation_token_ids"))
    if ids is None and "generation_log_probs" not in item:
        values: list[Any] = [entry.get("logprob") for entry in _entries(item)]
    else:
        values = items(item.get("generation_log_probs"))
    if ids is not None and len(values) != len(ids):
        return []
    # Several times faster than a check of each value.
    if set(map(type, values)) <= {float} and math.isfinite(sum(values)):
        return values
    valid = [value for value in (number(one, None) for one in values) if value is not None]
    return valid if len(valid) == len(values) else []


def ids_of(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and all(type(token) is int for token in value) else None


def alternatives_of(entry: Json) -> list[tuple[str, float]]:
    """Return the most likely tokens at the position of an element of `logprobs`, with their log-probabilities."""
    found = [
        (text_of(mapping(top).get("token")), mapping(top).get("logprob")) for top in items(entry.get("top_logprobs"))
    ]
    return [(text, value) for text, raw in found if (value := number(raw, None)) is not None]


def least_entropy(entry: Json) -> float | None:
    """Return a lower bound of the entropy of the distribution at a position, in nats; None without alternatives.

    The probability that the recorded tokens leave counts as that of a single further token, which has less entropy than
    any other distribution of it.
    """
    known = dict(alternatives_of(entry))
    if not known:
        return None
    own = number(entry.get("logprob"), None)
    if own is not None:
        known.setdefault(text_of(entry.get("token")), own)
    shares = [math.exp(min(0.0, value)) for value in known.values()]
    rest = 1.0 - math.fsum(shares)
    # Log-probabilities are rounded, so that a rest below this is nothing.
    return -math.fsum(share * math.log(share) for share in [*shares, *([rest] if rest > 1e-6 else [])] if share > 0)


def _entries(item: Json) -> list[Json]:
    parts = [mapping(part) for part in items(item.get("content"))]
    return [entry for part in parts for entry in items(part.get("logprobs")) if isinstance(entry, dict)]


def _texts(value: Any, count: int) -> list[str]:
    if isinstance(value, list) and len(value) == count and all(isinstance(text, str) for text in value):
        return value
    return []


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


def reader_of(field: FieldPath) -> Callable[[Any], Any]:
    if (derived := _READERS.get(field.column or "")) is not None:
        return derived
    if len(field.parts) == 1 and isinstance(name := field.parts[0], str):
        return lambda row: row.get(name)
    return field.value
