"""The rules for recorded tokens that trainers assert. A result that breaks one would end the training step.

1. The prompt of each trainable item begins with the token ids of all earlier trainable items.
2. Every generated token has a finite log-probability.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from rollyard.records.types import TOKEN_FIELDS, Json

PLACEHOLDER_TOKEN = 0
"""Every vocabulary has it. It has no loss, because the result is masked."""


def is_trainable(item: Json) -> bool:
    """Return whether an output item holds the tokens of a model call."""
    return bool(item.get("generation_token_ids"))


def remove_after_violation(output: list[Json]) -> str:
    """Remove the tokens of the first item that breaks a rule and of all later items. Return the rule, '' if none."""
    seen: list[int] = []
    broken = ""
    for number, item in enumerate(output):
        if not is_trainable(item):
            continue
        broken = broken or _violation(item, seen, number)
        if broken:
            for name in TOKEN_FIELDS:
                item.pop(name, None)
        else:
            seen = [*item["prompt_token_ids"], *item["generation_token_ids"]]
    return broken


def placeholder() -> Json:
    """Return an output item with one token, for a result that has none."""
    return {
        "id": "placeholder",
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "output_text", "text": "", "annotations": []}],
        "prompt_token_ids": [PLACEHOLDER_TOKEN],
        "generation_token_ids": [PLACEHOLDER_TOKEN],
        "generation_log_probs": [0.0],
    }


def _violation(item: Json, seen: list[int], number: int) -> str:
    prompt, generated, log_probs = (item.get(name) for name in TOKEN_FIELDS[:3])
    where = f"output item {number}"
    if not (_are_ids(prompt) and _are_ids(generated) and isinstance(log_probs, list)):
        return f"{where} has incomplete token fields"
    if len(log_probs) != len(generated):
        return f"{where} has {len(generated)} tokens and {len(log_probs)} log-probabilities"
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in log_probs):
        return f"{where} has a log-probability that is not finite"
    if prompt[: len(seen)] != seen:
        return f"the prompt of {where} does not begin with the {len(seen)} tokens of the earlier turns"
    return ""


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(number, int) for number in value)
