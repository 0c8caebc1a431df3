"""Keys of rollouts: the (task, repeat) pair of a row, a hash of its task, and compact sets of keys."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.errors import OperatorError

_NOT_PART_OF_TASK = frozenset({"agent_ref", "dataset_name", "prompt_id", "uuid", "response", "reward"})
"""Fields of a dataset row that do not define the task: its agent, the ids that a mixture adds, and earlier results."""
PROMPT = ("input", "instructions", "tools")
"""Create parameters that form the prompt. The others are sampling parameters, which do not define a task."""
_UNIQUE_KEYS = ("_ng_task_index", "_ng_rollout_index", "reward")
_QUOTED_KEYS = tuple(f'"{name}"'.encode() for name in _UNIQUE_KEYS)

Key = tuple[int, int]


@dataclass(frozen=True)
class Shard:
    """The share of one of `count` jobs that collect an output together, by a hash of the key that never changes."""

    number: int
    """From 1 to `count`."""
    count: int

    @classmethod
    def parse(cls, text: str | None) -> Shard | None:
        """Read `2/4`, or None. Raises OperatorError if it is something else."""
        if text is None:
            return None
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise OperatorError(
                f"shard is {text!r:.40}; expected i/n, with i from 1 to n, such as 1/2 and 2/2 for two jobs"
            )
        return cls(int(found[1]), int(found[2]))

    def output(self, output: Path) -> Path:
        return output.with_name(f"{output.stem}.shard-{self.number}-of-{self.count}{output.suffix}")

    def __contains__(self, key: Key) -> bool:
        found = hashlib.sha256(b"%d/%d" % key).digest()
        return int.from_bytes(found[:8], "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True)
class Expected:
    """The keys that a collection expects: every task, with the same number of repeats for each, or a share of them."""

    tasks: int
    repeats: int
    shard: Shard | None = None
    total: int | None = None
    """Number of keys if some repeats are not expected, as of stored rollouts that are not complete; None: all are."""

    @cached_property
    def count(self) -> int:
        if self.total is not None:
            return self.total
        if self.shard is None:
            return self.tasks * self.repeats
        return sum((task, repeat) in self.shard for task in range(self.tasks) for repeat in range(self.repeats))

    def __contains__(self, key: Key) -> bool:
        is_known = 0 <= key[0] < self.tasks and 0 <= key[1] < self.repeats
        return is_known and (self.shard is None or key in self.shard)


class KeySet:
    """A compact set of keys. It stores one integer per task, whose bits represent the repeats."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._count = 0

    def add(self, key: Key) -> bool:
        """Add the key; return False if it was already in the set."""
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

    def repeats_of(self, task: int) -> int:
        return self._bits.get(task, 0).bit_count()


def task_key(row: Mapping[str, Any]) -> str:
    """Return a dataset row's `_ng_task_key`, which is equal for duplicate tasks regardless of file and position.

    It consists of 16 hexadecimal digits from the SHA-256 hash of the prompt, the tools and all other fields that an
    environment can read. Sampling parameters are excluded, because they do not define the task.
    """
    return digest({**task_fields(row), "responses_create_params": prompt_of(row)}).hex()


def task_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataset row that define its task, and its create parameters."""
    return {key: value for key, value in row.items() if key not in _NOT_PART_OF_TASK and not key.startswith("_ng_")}


def prompt_key(row: Mapping[str, Any]) -> int:
    """Return a 64-bit hash of a rollout's initial prompt, or 0 if the row does not have one."""
    prompt = prompt_of(row)
    try:
        return int.from_bytes(digest(prompt), signed=True) if prompt else 0
    except RecursionError:  # a row of another program, nested deeper than Rollyard allows
        return 0


def prompt_of(row: Mapping[str, Any]) -> dict[str, Any]:
    params = row.get("responses_create_params")
    if not isinstance(params, dict):
        return {}
    return {key: params[key] for key in PROMPT if params.get(key) is not None}


def digest(value: Any) -> bytes:
    """Return 8 bytes of the SHA-256 hash of a JSON value; the order of keys does not matter."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # an integer over 64 bits, a lone surrogate, or more than 254 levels
        data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(data).digest()[:8]


def duplicate_key(line: bytes) -> str:
    """Return a rollout key that occurs twice in the line's object, or an empty string if there is none.

    Parsers handle duplicate keys differently.
    """
    if all(line.count(quoted) < 2 for quoted in _QUOTED_KEYS):
        return ""
    pairs: list[tuple[str, Any]] = json.loads(line, object_pairs_hook=list)
    keys = [key for key, _ in pairs]
    return next((name for name in _UNIQUE_KEYS if keys.count(name) > 1), "")


def key_of(row: Mapping[str, Any], expected: Expected | None = None) -> Key:
    """Return the key of a row.

    Raises ValueError if it is invalid or not in `expected`. The message is worded to follow a prefix such as `line 17`.
    """
    task, repeat = row.get("_ng_task_index"), row.get("_ng_rollout_index")
    for name, found in (("_ng_task_index", task), ("_ng_rollout_index", repeat)):
        # JSON's true is an int in Python. A huge repeat would fill the memory, because it is a bit in an integer.
        if type(found) is not int or not 0 <= found < 2**31:
            problem = f"has no {name}" if found is None else f"has {name} {str(found)[:40]!r}"
            raise ValueError(f"{problem}; expected a non-negative integer")
    key: Key = (task, repeat)  # type: ignore[assignment]
    if expected is not None and key not in expected:
        part = f"shard {expected.shard} of " if expected.shard else ""
        raise ValueError(
            f"is task {key[0]}, repeat {key[1]}, which is not in {part}this collection "
            f"({expected.tasks} tasks, {expected.repeats} repeats, both counted from 0)"
        )
    return key
