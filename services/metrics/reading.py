"""A rollout file -> Columns: read once, in parts, by as many processes as help; no row is kept.

Measured on rows with token ids (23 kB): orjson and these arrays take 1.5 times the CPU of DuckDB and a fortieth of its
memory, need no schema, and name the line that is wrong. Memory: some 150 bytes a rollout and the longest line.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from services.errors import OperatorError, RunError
from services.metrics.columns import Columns, merged
from services.metrics.gather import Gatherer

PART = 32 << 20
"""Bytes a process reads before it hands its columns over."""
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


class _BadLine(Exception):
    """The line that begins at a byte cannot be read, and why. Crosses process borders."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset, self.reason = offset, reason


def read(path: Path, *, workers: int = 1, part: int = PART, progress: Progress | None = None) -> Read:
    """Every measured rollout of `path`.

    `workers`: processes that share the file, `part` bytes each at a time; from 2 on the program's own main module must
    be importable.

    Raises OperatorError when there is no such file, RunError when a line is no rollout or two are the same one.
    """
    try:
        size, indexed = path.stat().st_size, _indexed(path)
        parts = _parts(path, size, indexed, workers, part, progress or _quiet)
    except OSError as error:
        raise OperatorError(
            f"rollout file {str(path)!r} cannot be read: {error.strerror or error}. "
            "Give the output of ng_collect_rollouts: +jsonl_fpath=[results/rollouts.jsonl]"
        ) from error
    except _BadLine as bad:
        raise RunError(
            f"{path}: line {_line(path, bad.offset)} {bad.reason}. Take it out by hand, or collect anew."
        ) from bad
    except BrokenProcessPool as error:
        raise RunError(
            f"a process that read {path} was ended from outside (out of memory?): use fewer with +workers=1"
        ) from error
    found, torn = [columns for columns, _ in parts], parts[-1][1]
    del parts
    columns = merged(found)
    if indexed:
        _check_twice(path, columns)
    return Read(columns, size, torn, indexed)


def _indexed(path: Path) -> bool:
    """Whether the first row says which task it is."""
    _, line = next(_lines(path, 0, 1 << 62), (0, b""))
    try:
        row = _loads(line)
    except ValueError:
        return True
    return not isinstance(row, dict) or "_ng_task_index" in row


def _parts(
    path: Path, size: int, indexed: bool, workers: int, part: int, progress: Progress
) -> list[tuple[Columns, int]]:
    ranges = [(start, min(start + part, size)) for start in range(0, max(size, 1), part)]
    count = min(workers, len(ranges))
    done: list[tuple[Columns, int]] = []
    if count == 1:
        for start, stop in ranges:
            done.append(_part(path, start, stop, indexed))
            progress(stop - start)
        return done
    others = set(active_children())
    # Spawned, not forked: numpy's own threads do not survive a fork.
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        try:
            with _deaf():
                futures = [pool.submit(_part, path, start, stop, indexed) for start, stop in ranges]
            for (start, stop), future in zip(ranges, futures, strict=True):
                done.append(future.result())
                progress(stop - start)
        except BaseException:
            # Leaving the pool waits for what is under way, and nobody wants it any more.
            for process in set(active_children()) - others:
                process.terminate()
            raise
    return done


def _part(path: Path, start: int, stop: int, indexed: bool) -> tuple[Columns, int]:
    """Columns of the lines that begin in [start, stop), and the bytes of a torn line among them."""
    gatherer = Gatherer(indexed=indexed)
    torn = 0
    for offset, line in _lines(path, start, stop):
        try:
            row = _loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"is a JSON {type(row).__name__}; expected an object")
        except ValueError as error:
            if not line.endswith(b"\n"):
                torn = len(line)
                continue
            reason = str(error) if str(error).startswith("is a JSON") else f"is not JSON ({error})"
            raise _BadLine(offset, reason) from error
        try:
            gatherer.add(row, offset)
        except ValueError as error:
            raise _BadLine(offset, str(error)) from error
    return gatherer.columns(), torn


def _lines(path: Path, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in [start, stop), with the byte where they do. They end at `\\n` only."""
    with path.open("rb") as file:
        offset = start
        if start:
            file.seek(start - 1)
            offset += len(file.readline()) - 1
        while offset < stop:
            line = file.readline()
            if not line:
                return
            if line.strip():
                yield offset, line
            offset += len(line)


def _loads(line: bytes) -> Any:
    """A line's value. NaN and escapes of lone surrogates are what others write and orjson refuses."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line)


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
def _deaf() -> Iterator[None]:
    """Processes started in here do not hear Ctrl-C, not even while they start: it is their parent's to handle."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _quiet(_: int) -> None:
    """Nobody looks on."""
