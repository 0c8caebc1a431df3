"""Keys of rollouts: which (task, repeat) a row is and what its task asks; which ones are expected, which are there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_NOT_ASKED = frozenset({"agent_ref", "dataset_name", "prompt_id", "uuid", "response", "reward"})
"""Of a data set's row: who plays it, names that a mixture gives it, and what an older rollout of it came to."""
_ONCE = ("_ng_task_index", "_ng_rollout_index", "reward")
_QUOTED = tuple(f'"{name}"'.encode() for name in _ONCE)

Key = tuple[int, int]
"""(task index, rollout index)."""


@dataclass(frozen=True)
class Expected:
    """The keys of a collection: every task, each with the same number of repeats."""

    tasks: int
    repeats: int

    @property
    def count(self) -> int:
        """Rollouts in all."""
        return self.tasks * self.repeats

    def __contains__(self, key: Key) -> bool:
        return 0 <= key[0] < self.tasks and 0 <= key[1] < self.repeats


class KeySet:
    """A set of keys that costs a few bytes a task: one integer's bits are the repeats."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._count = 0

    def add(self, key: Key) -> bool:
        """False if the key was in the set already."""
        bits = self._bits.get(key[0], 0)
        if bits >> key[1] & 1:
            return False
        self._bits[key[0]] = bits | 1 << key[1]
        self._count += 1
        return True

    def __contains__(self, key: Key) -> bool:
        return bool(self._bits.get(key[0], 0) >> key[1] & 1)

    def __len__(self) -> int:
        return self._count


def task_key(row: Mapping[str, Any]) -> str:
    """`_ng_task_key` of a data set's row: equal for rows that ask the same, in whatever file and at whatever place.

    16 hexadecimal digits of the SHA-256 of the prompt, the tools and every other field that an environment may read.
    Sampling parameters are left out: they say how a task is played.
    """
    own = {key: value for key, value in row.items() if key not in _NOT_ASKED and not key.startswith("_ng_")}
    own["responses_create_params"] = prompt_of(row)
    return _digest(own).hex()


def prompt_key(row: Mapping[str, Any]) -> int:
    """A number of 64 bits for what a rollout's model was asked at first; 0 where the row does not say."""
    prompt = prompt_of(row)
    try:
        return int.from_bytes(_digest(prompt), signed=True) if prompt else 0
    except RecursionError:  # another stack's row, nested deeper than any of ours may be
        return 0


def prompt_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the model is asked: input, instructions and tools."""
    params = row.get("responses_create_params")
    if not isinstance(params, dict):
        return {}
    return {key: params[key] for key in ("input", "instructions", "tools") if params.get(key) is not None}


def _digest(value: Any) -> bytes:
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # a number of more than 64 bits, a lone surrogate, more than 254 levels
        data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(data).digest()[:8]


def duplicate_key(line: bytes) -> str:
    """Which key of a rollout the line's object holds twice, so that its readers may disagree; empty if none."""
    if all(line.count(quoted) < 2 for quoted in _QUOTED):
        return ""
    pairs: list[tuple[str, Any]] = json.loads(line, object_pairs_hook=list)
    keys = [key for key, _ in pairs]
    return next((name for name in _ONCE if keys.count(name) > 1), "")


def key_of(row: Mapping[str, Any], expected: Expected | None = None) -> Key:
    """The key of a row. Raises ValueError, worded to follow `line 17`, for a key that is not a key or not expected."""
    task, repeat = row.get("_ng_task_index"), row.get("_ng_rollout_index")
    for name, found in (("_ng_task_index", task), ("_ng_rollout_index", repeat)):
        # JSON's true is an int to Python, and a repeat is a bit: a huge one would fill the memory.
        if type(found) is not int or not 0 <= found < 2**31:
            said = f"has no {name}" if found is None else f"has {name} {str(found)[:40]!r}"
            raise ValueError(f"{said}; expected a whole number from 0")
    key: Key = (task, repeat)  # type: ignore[assignment]
    if expected is not None and key not in expected:
        raise ValueError(
            f"is task {key[0]}, repeat {key[1]}, which is not of this collection "
            f"({expected.tasks} tasks, {expected.repeats} repeats, both counted from 0)"
        )
    return key
