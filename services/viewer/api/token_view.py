"""Reads the tokens of a model call from its last item."""

from __future__ import annotations

from typing import Any

from rollyard.services.io.json_values import number
from rollyard.services.types import Json
from rollyard.services.viewer.api.api_records import Tokens
from rollyard.services.viewer.api.row_fields import shortened_values


def tokens_of(item: Json, *, trained: bool) -> Tokens | None:
    """Return the item's tokens; None if they are missing or invalid."""
    prompt, generated = _ids(item.get("prompt_token_ids")), _ids(item.get("generation_token_ids"))
    if generated is None:
        return None
    trace = item.get("token_trace")
    return Tokens(
        prompt=prompt or [],
        generated=generated,
        log_probs=_log_probs(item.get("generation_log_probs")),
        trained=trained,
        trace=shortened_values(trace) if isinstance(trace, dict) else None,
    )


def _ids(value: Any) -> list[int] | None:
    if isinstance(value, list) and all(type(token) is int for token in value):
        return value
    return None


def _log_probs(value: Any) -> list[float]:
    """Return all values. If one of them is invalid, return an empty list, because a gap would shift the others."""
    found = [number(log_prob, None) for log_prob in value] if isinstance(value, list) else []
    valid = [log_prob for log_prob in found if log_prob is not None]
    return valid if len(valid) == len(found) else []
