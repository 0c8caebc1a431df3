"""Checks whether the recorded log-probabilities of a turn are those of the policy alone, so a trainer can use them.

A trainer compares `generation_log_probs` with its own forward pass. The two agree if the recorded numbers are
log softmax(logits / T), where T is 1 for `raw_logprobs` and the recorded temperature for `processed_logprobs`.
Measurements with vLLM 0.32 (tests/external/vllm/test_constraint_logprobs.py) show that they do not agree

    under a grammar (structured outputs, strict or forced tool calls)                              in both modes
    under allowed_token_ids, bad_words, logit_bias, min_tokens, top_p, top_k, min_p and penalties  in processed_logprobs
    at temperature 0, where nothing is sampled                                                     in both modes
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import orjson

from rollyard.records.types import Json, is_number, mapping

BY_GRAMMAR = frozenset(
    {"structured_outputs", "response_format", "structural_tag", "strict_tools", "tool_choice"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf", "grammar", "json_schema"}
    | {"trace_decode_token_ids"}
)
"""Names in `sampling.constrained` that affect both raw and processed log-probabilities."""
MIN_TEMPERATURE = 0.01
"""The lowest temperature at which vLLM samples."""
_MODES = ("raw_logprobs", "processed_logprobs")
LOWEST = -9000.0
"""Log-probabilities up to this value are invalid: engines write -9999 for missing ones."""


def why_not_policy_logprobs(item: Json) -> str:
    """Explain why the `generation_log_probs` in a turn's last item are not the policy's own; empty if they are."""
    sampling = mapping(mapping(item.get("token_trace")).get("sampling"))
    if not sampling:
        return "the turn has no record of its sampling parameters"
    if (mode := sampling.get("logprobs_mode")) not in _MODES:
        return f"the engine's logprobs mode is {mode!r}; expected one of {', '.join(_MODES)}"
    temperature: Any = sampling.get("temperature")
    if not is_number(temperature):
        return f"the recorded temperature is {temperature!r}; expected a number"
    if temperature < MIN_TEMPERATURE:
        return f"the turn was decoded greedily (temperature {temperature:g}; vLLM samples only from {MIN_TEMPERATURE})"
    names = sampling.get("constrained") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return f"the recorded constraints are {names!r:.100}; expected a list of names"
    constraints = [name for name in names if mode == "processed_logprobs" or name in BY_GRAMMAR]
    return f"{', '.join(constraints)} changed the distribution that was sampled from" if constraints else ""


def has_sampled_log_probs(item: Json) -> bool:
    """Return whether a constrained turn's `generation_log_probs` are those of the distribution that was sampled from.

    If so, exp(the policy's log-probability - the recorded one) is a token's importance weight. They are not if the turn
    was decoded greedily, or if raw log-probabilities lack the temperature or a constraint that sampling applied.
    """
    sampling = mapping(mapping(item.get("token_trace")).get("sampling"))
    mode: Any = sampling.get("logprobs_mode")
    temperature: Any = sampling.get("temperature")
    if not is_number(temperature) or temperature < MIN_TEMPERATURE:
        return False
    names = sampling.get("constrained") or []
    only_grammars = isinstance(names, list) and all(isinstance(name, str) and name in BY_GRAMMAR for name in names)
    return mode == "processed_logprobs" or (mode == "raw_logprobs" and temperature == 1.0 and only_grammars)


def temperature_of(sampling: Json) -> float:
    """Return the temperature by which a trainer divides its logits to compare them with the recorded turn.

    `sampling`: the turn's `token_trace.sampling`.
    """
    processed = sampling["logprobs_mode"] == "processed_logprobs"
    return float(sampling["temperature"] or 1.0) if processed else 1.0


def invalid_numbers(ids: Any, log_probs: Any) -> str:
    """Describe what is wrong with a turn's generated ids or log-probabilities; empty if they are valid."""
    if not are_ids(ids):
        return f"has generation_token_ids that are not a list of token ids: {str(ids)[:100]}"
    if not isinstance(log_probs, list) or len(log_probs) != len(ids):
        found = len(log_probs) if isinstance(log_probs, list) else str(log_probs)[:100]
        return f"has {len(ids)} token ids but {found} logprobs"
    if not log_probs or _are_log_probs(log_probs):
        return ""
    at = next(at for at, value in enumerate(log_probs) if not _are_log_probs([value]))
    description = f"log-probability {log_probs[at]!r} of token {ids[at]}, number {at + 1} of {len(ids)}"
    return f"reports {description}; expected a finite number up to 0 ({_cause(log_probs[at])})"


def are_ids(ids: Any) -> TypeGuard[list[int]]:
    """Return whether the value is a list of token ids: as JSON, digits and commas. To look at each takes five times as
    long.
    """
    try:
        return isinstance(ids, list) and orjson.dumps(ids).translate(None, b"0123456789,") == b"[]"
    except TypeError:  # more than 64 bits
        return False


def _are_log_probs(values: list[Any]) -> bool:
    # A sum is finite only if every number is. Rounding in half precision may leave a number slightly above 0.
    return (
        set(map(type, values)) <= {int, float}
        and min(values) > LOWEST
        and math.isfinite(sum(values))
        and max(values) <= 0.01
    )


def _cause(value: Any) -> str:
    if is_number(value) and value > 0:
        return "is its --logprobs-mode raw_logits or processed_logits?"
    return "engines write null, NaN, -inf or -9999 where the model's logits are not finite: check the weights"
