"""Computes the identity of a rollout from its row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollyard.records.io.json_values import items, mapping, whole_number
from rollyard.records.notes.record import RolloutRef
from rollyard.records.rollouts.rollout_keys import digest, prompt_key
from rollyard.records.types import TOKEN_FIELDS

PROMPT_PREFIX = "prompt:"
_INCIDENTAL = frozenset({"id", "call_id", "status", "annotations", "logprobs", *TOKEN_FIELDS})
"""Keys of an output item, or of a part of its content, that say nothing about what was written. Programs remove or
renew them, as when token ids are stripped from a file.
"""


def ref_of(row: Mapping[str, Any], task: int | None = None, repeat: int | None = None) -> RolloutRef:
    """Return the identity of a row. `task` and `repeat`: its indexes; default: those in the row, 0 if it has none."""
    if task is None:
        task = whole_number(row.get("_ng_task_index"), least=0) or 0
    if repeat is None:
        repeat = whole_number(row.get("_ng_rollout_index"), least=0) or 0
    return RolloutRef(task_key=task_key_of(row), response_key=response_key(row), repeat=repeat, task=task)


def task_key_of(row: Mapping[str, Any]) -> str:
    """Return `_ng_task_key`, or a hash of the prompt for rows of other programs."""
    key = row.get("_ng_task_key")
    if isinstance(key, str) and len(key) == 16:
        return key
    return prompt_text(prompt_key(row))


def prompt_text(key: int) -> str:
    """Return the task key that stands for a `prompt_key`."""
    return f"{PROMPT_PREFIX}{key & (1 << 64) - 1:016x}"


def response_key(row: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits from the SHA-256 hash of the output: messages, reasoning, calls and results.

    Ids, token ids and log-probabilities do not count, nor do rewards: a row that is scored again is the same rollout.
    """
    output = items(mapping(row.get("response")).get("output"))
    try:
        return digest([_essence(item) for item in output]).hex()
    except RecursionError:  # a row of another program, nested deeper than Rollyard allows
        return ""


def _essence(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    kept = {key: value for key, value in item.items() if key not in _INCIDENTAL}
    for key in ("content", "summary"):
        if isinstance(kept.get(key), list):
            kept[key] = [_essence(part) for part in kept[key]]
    return kept
