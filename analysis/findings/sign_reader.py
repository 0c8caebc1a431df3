"""Reads the signs of all rows of a file in one pass. Several processes can share the file; rows are not kept."""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from rollyard.analysis.findings.catalog import ROW_DETECTORS
from rollyard.analysis.findings.evidence import FailedAttempts, Signs, joined
from rollyard.analysis.findings.final_answer import letter_of
from rollyard.analysis.findings.python_code import functions
from rollyard.analysis.findings.row_view import RowView
from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.metrics.loader.parallel_reader import reading_pool
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.json_values import items, mapping, number, text_of, whole_number
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.io.lines import Lines
from rollyard.records.io.rollout_paths import RolloutPaths

_YES_NO = {"yes": "yes", "true": "yes", "correct": "yes", "no": "no", "false": "no", "incorrect": "no"}
_READS = re.compile(r"\b(?:import|input|open|read|stdin|argv)\b")
PART = 16 << 20
"""Number of bytes that are read at a time."""


def read_signs(
    path: Path, stop: int, *, workers: int = 1, part: int = PART, progress: Callable[[int], None] | None = None
) -> Signs:
    """Read the rows that begin before byte `stop` with up to `workers` processes. `progress` is called with the number
    of bytes read since the last call.

    Raises OperatorError if the file cannot be read, and RunError if a process was killed.
    """
    ranges = ranges_of(0, stop, part)
    found = [no_signs()]
    try:
        if min(workers, len(ranges)) > 1:
            with reading_pool(min(workers, len(ranges))) as pool:
                for one in read_ranges(path, ranges, pool):
                    found.append(one)
                    _report(progress, ranges[len(found) - 2])
        else:
            for one in read_ranges(path, ranges):
                found.append(one)
                _report(progress, ranges[len(found) - 2])
    except OSError as error:
        raise OperatorError(f"rollout file {str(path)!r} cannot be read: {error.strerror or error}") from error
    except BrokenProcessPool as error:
        raise RunError(
            f"a process reading {path} was killed, possibly because memory ran out; use one process with --workers 1"
        ) from error
    return joined(found)


def ranges_of(start: int, stop: int, part: int = PART) -> list[tuple[int, int]]:
    """Divide the bytes from `start` to `stop` into parts."""
    return [(at, min(at + part, stop)) for at in range(start, stop, part)]


def read_ranges(
    path: Path, ranges: Sequence[tuple[int, int]], pool: ProcessPoolExecutor | None = None
) -> Iterator[Signs]:
    """Yield the signs of each range in order, read in this process or in `pool`. Raises OSError."""
    if pool is None:
        yield from (read_range(path, start, stop) for start, stop in ranges)
        return
    futures = deque(pool.submit(read_range, path, start, stop) for start, stop in ranges)
    while futures:
        yield futures.popleft().result()


def read_range(path: Path, start: int, stop: int) -> Signs:
    """Read the rows that begin in a range. Invalid lines are skipped; the metrics report them. Raises OSError."""
    ints, floats = array("q"), array("d")
    for line in iter_jsonl(Lines(path, start, stop), skip):
        row = RowView(line.value)
        flags = 0
        for bit, detector in enumerate(ROW_DETECTORS):
            if detector.flags(row):
                flags |= 1 << bit
        ints.extend((line.offset, flags, _hash(row.expected), _hash(row.extracted or ""), *_same_text(row)))
        created = mapping(line.value.get("response")).get("created_at")
        floats.extend((len(row.text), len(row.final_message), _partial_rewards(row), number(created, math.nan)))
    at, flag, expected, extracted, same, subject = np.array(ints, np.int64).reshape(-1, 6).T.copy()
    length, answer, partial, made = np.array(floats, np.float64).reshape(-1, 4).T.copy()
    kinds = tuple(detector.kind for detector in ROW_DETECTORS)
    return Signs(kinds, at, flag, expected, extracted, same, subject, length, answer, partial, made, end=stop)


def no_signs() -> Signs:
    """Return the signs of an empty file."""
    ints, floats = np.empty(0, np.int64), np.empty(0)
    kinds = tuple(one.kind for one in ROW_DETECTORS)
    return Signs(kinds, ints, ints, ints, ints, ints, ints, floats, floats, floats, floats)


def read_failed_attempts(path: Path) -> FailedAttempts:
    """Read the failed attempts of the rollout file `path`; none if there is no failures file."""
    ints, times, kinds, servers = array("q"), array("d"), list[str](), list[str]()
    try:
        for line in iter_jsonl(RolloutPaths(path).failures, skip):
            row = line.value
            task, repeat = whole_number(row.get("_ng_task_index")), whole_number(row.get("_ng_rollout_index"))
            if task is None or repeat is None:
                continue
            ints.extend((task, repeat))
            times.append(number(row.get("time"), math.nan))
            kinds.append(displayable(text_of(row.get("failure_kind")) or "unknown"))
            servers.append(displayable(text_of(row.get("server"))))
    except OSError:
        pass
    tasks, repeats = np.array(ints, np.int64).reshape(-1, 2).T.copy()
    return FailedAttempts(tasks, repeats, np.array(times, np.float64), kinds, servers)


def _report(progress: Callable[[int], None] | None, span: tuple[int, int]) -> None:
    if progress is not None:
        progress(span[1] - span[0])


def _hash(text: str) -> int:
    """Return a 64-bit hash; 0 for ''."""
    if not text:
        return 0
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True) | 2


def _same_text(row: RowView) -> tuple[int, int]:
    """Return the hashes of the messages and of what they answer; see Signs. Wordings of one answer have the same hash
    as far as possible: numbers are rounded to two digits.
    """
    text, gold = " ".join(" ".join(row.messages).split()), row.expected
    if not text or row.calls or len(row.gold_answers) > 1:
        return 0, 0
    if row.gold_number is not None:
        return _hash(text), _hash(f"{row.gold_number:.1e}") & ~3 | 2
    words = "".join(filter(str.isalnum, gold)).casefold()
    if words in _YES_NO:
        return _hash(text), _hash(_YES_NO[words]) & ~3 | 1
    if letter := letter_of(gold):
        return _hash(text), _hash(letter) & ~3 | 3
    if words:
        return (0, 0) if _share_a_word(text, gold) else (_hash(text), _hash(words) & ~3 | 2)
    if not row.code or gold or any(_is_general(code) for code in row.code):
        return 0, 0
    return _hash(text), _hash(" ".join(re.findall(r"\d+", row.prompt))) & ~3 | 2


def _share_a_word(text: str, gold: str) -> bool:
    """Return whether a text may name a gold answer in other words, such as Paris for "the city of Paris"."""
    return not set(re.findall(r"\w{3,}", text.casefold())).isdisjoint(re.findall(r"\w{3,}", gold.casefold()))


def _is_general(code: str) -> bool:
    """Return whether a program can do the same task in different words or for different numbers."""
    return bool(_READS.search(code)) or any(function.has_parameters for function in functions(code))


def _partial_rewards(row: RowView) -> float:
    rewards = [value for value in items(row.row.get("step_rewards")) if isinstance(value, (int, float)) and value > 0]
    if not rewards:
        return math.nan
    return Counter(round(value, 9) for value in rewards).most_common(1)[0][1]
