"""A rollout file -> Columns: read once, in parts, by as many processes as help; no row is kept.

Measured on rows with token ids (23 kB): orjson and these arrays take 1.5 times the CPU of DuckDB and a fortieth of its
memory, need no schema, and name the line that is wrong. Memory: some 150 bytes a rollout and the longest line.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import cast

import numpy as np

from rollyard.services.errors import OperatorError, RunError
from rollyard.services.io.jsonl import ParsedLine, hand_over, iter_jsonl
from rollyard.services.io.lines import Lines
from rollyard.services.metrics.loader.columns import Columns, merged
from rollyard.services.metrics.loader.rollout_parser import RolloutParser
from rollyard.services.rollout_types import RolloutRow

PART = 32 << 20
"""Bytes a process reads before it hands its columns over."""
_MOST_TRIED = 100
"""Lines among which the first row is looked for."""
Progress = Callable[[int], None]
"""Told of every so many bytes done."""


@dataclass(frozen=True)
class Read:
    """A file's measured rollouts by (task, repeat), and what stood after its last whole line."""

    columns: Columns
    size: int
    """Bytes."""
    torn: int
    """Bytes of an unfinished last line, which is not counted."""
    indexed: bool
    """Whether rows say which task they are; older ones of NeMo Gym do not, and then each is a task of its own."""


@dataclass(frozen=True)
class Part:
    """The lines that begin in a stretch of the file. Crosses process borders."""

    columns: Columns
    stop: int
    """Byte after the last whole line; 0 where none begins here."""
    bad: tuple[int, str] | None
    """The first line that is no rollout: the byte where it begins, and why, to be read after `line 17`."""
    bad_lines: int


def read(path: Path, *, workers: int = 1, part: int = PART, progress: Progress | None = None) -> Read:
    """Every measured rollout of `path`.

    `workers`: processes that share the file, `part` bytes each at a time; from 2 on the program's own main module must
    be importable.

    Raises OperatorError when there is no such file, RunError when a line is no rollout or two are the same one.
    """
    try:
        size, indexed = path.stat().st_size, says_task(path)
        parts = _parts(path, size, indexed is not False, workers, part, progress or _quiet)
    except OSError as error:
        raise OperatorError(
            f"rollout file {str(path)!r} cannot be read: {error.strerror or error}. "
            "Give the output of ng_collect_rollouts: +jsonl_fpath=[results/rollouts.jsonl]"
        ) from error
    except BrokenProcessPool as error:
        raise RunError(
            f"a process that read {path} was ended from outside (out of memory?): use fewer with +workers=1"
        ) from error
    found, whole = [part.columns for part in parts], max(part.stop for part in parts)
    del parts
    columns = merged(found)
    if indexed is not False:
        _check_twice(path, columns)
    return Read(columns, size, max(size - whole, 0), indexed is not False)


def says_task(path: Path) -> bool | None:
    """Whether the first row says which task it is; None while there is no whole line. Raises OSError."""
    answer = None
    for found in itertools.islice(iter_jsonl(path, hand_over), _MOST_TRIED):
        if isinstance(found, ParsedLine):
            return "_ng_task_index" in found.value
        # What is no row will be named as such, unless it is one that is being written.
        answer = answer if found.torn else True
    return answer


def _parts(path: Path, size: int, indexed: bool, workers: int, part: int, progress: Progress) -> list[Part]:
    ranges = [(start, min(start + part, size)) for start in range(0, max(size, 1), part)]
    count = min(workers, len(ranges))
    done: list[Part] = []
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(reading_pool(count)) if count > 1 else None
        for (start, stop), found in zip(ranges, read_parts(path, ranges, indexed, pool), strict=True):
            if found.bad is not None:
                offset, reason = found.bad
                raise RunError(f"{path}: line {_line(path, offset)}{reason}. Take it out by hand, or collect anew.")
            done.append(found)
            progress(stop - start)
    return done


@contextmanager
def reading_pool(workers: int, *, nice: int = 0) -> Iterator[ProcessPoolExecutor]:
    """Processes that read, so much nicer than this one. When an error leaves the block they are ended at once."""
    others = set(active_children())
    # Spawned, not forked: numpy's own threads do not survive a fork.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=os.nice, initargs=(nice,)) as pool:
        try:
            yield pool
        except BaseException:
            # Leaving the pool waits for what is under way, and nobody wants it any more.
            begun = set(active_children()) - others
            for process in begun:
                process.terminate()
            for process in begun:
                process.join()
            raise


def read_parts(
    path: Path, ranges: Sequence[tuple[int, int]], indexed: bool, pool: ProcessPoolExecutor | None = None
) -> Iterator[Part]:
    """The part of each range, in order; read here, or by the processes of `pool`. Raises OSError, BrokenProcessPool.

    `indexed`: rows say which task they are.
    """
    if pool is None:
        for start, stop in ranges:
            yield _part(path, start, stop, indexed)
        return
    with _ignore_interrupts():
        futures = deque(pool.submit(_part, path, start, stop, indexed) for start, stop in ranges)
    while futures:
        yield futures.popleft().result()


def _part(path: Path, start: int, stop: int, indexed: bool) -> Part:
    gatherer = RolloutParser(indexed=indexed)
    lines, torn, bad, bad_lines = Lines(path, start, stop), None, None, 0
    for found in iter_jsonl(lines, hand_over):
        if isinstance(found, ParsedLine):
            try:
                gatherer.add(cast(RolloutRow, found.value), found.offset)
                continue
            except ValueError as error:
                problem = f" {error}"
        elif found.torn:
            torn = found
            break
        else:
            problem = found.problem
        bad = bad or (found.offset, problem)
        bad_lines += 1
    if torn is None:
        return Part(gatherer.columns(), lines.end, bad, bad_lines)
    return Part(gatherer.columns(), torn.offset if torn.number > 1 else 0, bad, bad_lines)


def _check_twice(path: Path, columns: Columns) -> None:
    """Raises RunError when two rows are the same rollout. `columns` are sorted."""
    same = (np.diff(columns.task) == 0) & (np.diff(columns.repeat) == 0)
    if same.any():
        first = int(np.flatnonzero(same)[0])
        lines = sorted(_line(path, int(offset)) for offset in columns.offset[first : first + 2])
        raise RunError(
            f"{path}: lines {lines[0]} and {lines[1]} are both task {columns.task[first]}, repeat "
            f"{columns.repeat[first]} ({same.sum()} such rows in all). A rollout counts once: take the others out by "
            "hand, or give files of different runs one by one."
        )


def _line(path: Path, offset: int) -> int:
    """Number of the line that begins at a byte."""
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (chunk := file.read(min(1 << 20, offset))):
            number += chunk.count(b"\n")
            offset -= len(chunk)
    return number


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Processes started in here do not hear Ctrl-C, not even while they start: it is their parent's to handle."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _quiet(_: int) -> None:
    """Nobody looks on."""
