"""Reads the rows of rollout and failures files that other processes may still be writing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import iter_jsonl, refuse, strict
from rollyard.records.io.lines import Lines
from rollyard.records.rollouts.rewards import EXPECTED, is_reward
from rollyard.records.rollouts.rollout_keys import Expected, Key, duplicate_key, key_of
from rollyard.records.types import Json

_HINT = "Delete that line; a later command collects its rollout again."


class KeyedLine(NamedTuple):
    """A complete line of a rollout or failures file."""

    key: Key
    offset: int
    line: bytes
    """With its line ending."""
    row: Json


def rollout_lines(path: Path, expected: Expected, start: int = 0) -> Iterator[KeyedLine]:
    """Yield the rollouts of a file from the byte offset `start`, without an incomplete last line.

    A file that does not exist has none. Raises RunError if a line is not one of the expected rollouts, with a reward.
    """
    for number, keyed in enumerate(_lines(path, expected, start), 1):
        problem = ""
        if duplicated := duplicate_key(keyed.line):
            problem = f"has the key {duplicated} twice"
        elif not is_reward(keyed.row.get("reward")):
            problem = f"has reward {keyed.row.get('reward')!r:.40}; {EXPECTED}"
        if problem:
            raise RunError(f"{path}: row {number} {problem}. {_HINT}")
        yield keyed


def failure_lines(path: Path, expected: Expected, start: int = 0) -> Iterator[KeyedLine]:
    """Yield the failed attempts of a file, as `rollout_lines` does."""
    return _lines(path, expected, start)


def _lines(path: Path, expected: Expected, start: int) -> Iterator[KeyedLine]:
    if not path.exists():
        return
    lines = Lines(path, start, whole=True)
    for number, offset, line, row in iter_jsonl(lines, refuse(path, _HINT), parse=strict):
        try:
            yield KeyedLine(key_of(row, expected), offset, line, row)
        except ValueError as error:
            raise RunError(f"{path}: line {number} {error}. {_HINT}") from error
