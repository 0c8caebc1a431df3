"""Loads a rollout file and its sidecar files as a Run: in one pass, by several processes, into columns."""

from __future__ import annotations

import itertools
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, cast

import numpy as np

from rollyard.analysis.metrics.columns import (
    Columns,
    RolloutParser,
    chosen,
    displayable,
    merged,
    numbered_in_file_order,
)
from rollyard.analysis.metrics.profile import Run, run_of
from rollyard.analysis.metrics.run_plan import SELECTION, RunPlan, read_run_plan
from rollyard.analysis.metrics.selection import parsed_condition, reads_task, rollouts_where
from rollyard.analysis.metrics.solved import rulings_of, with_solved
from rollyard.records.data_files import DataFile
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import Lines, ParsedLine, hand_over, iter_jsonl
from rollyard.records.rollout_types import RolloutRow

PART = 32 << 20
"""Number of bytes that a process reads before it returns its columns."""
_MAX_LINES_TRIED = 100
"""Maximum number of lines to search for the first row."""
Progress = Callable[[int], None]
"""A callback that receives the number of bytes read since its last call."""


@dataclass(frozen=True)
class Read:
    """The rollouts read from a file, sorted by (task, repeat)."""

    columns: Columns
    size: int
    """File size in bytes."""
    torn: int
    """Number of bytes in an incomplete last line, which is not counted."""
    indexed: bool
    """Whether rows have a task index. Each row of older versions of NeMo Gym counts as a task."""


@dataclass(frozen=True)
class FilePart:
    """The lines that begin in one range of the file. Parts are sent between processes."""

    columns: Columns
    stop: int
    """Byte offset of the end of the last complete line; 0 if no line begins in the range."""
    bad: tuple[int, str] | None
    """Byte offset of the first invalid line, and the reason, phrased to follow `line 17`."""
    bad_lines: int


def read(path: Path, *, workers: int = 1, part: int = PART, progress: Progress | None = None) -> Read:
    """Read every measured rollout in `path`, in parts of `part` bytes that `workers` processes share.

    Raises OperatorError if the file cannot be read, and RunError if a line is not a valid rollout, two rows are the
    same rollout, or a process was killed.
    """
    parts: list[FilePart] = []
    try:
        size, indexed = path.stat().st_size, has_task_index(path) is not False
        ranges = [(start, min(start + part, size)) for start in range(0, max(size, 1), part)]
        processes = min(workers, len(ranges))
        with reading_pool(processes) if processes > 1 else nullcontext() as pool:
            for (start, stop), one in zip(ranges, read_parts(path, ranges, indexed, pool), strict=True):
                if one.bad is not None:
                    line, problem = _line(path, one.bad[0]), one.bad[1]
                    raise RunError(
                        f"{path}: line {line}{problem}. Delete that line, or collect again with --overwrite."
                    )
                parts.append(one)
                if progress is not None:
                    progress(stop - start)
    except OSError as error:
        raise OperatorError(
            f"rollout file {str(path)!r} cannot be read: {error.strerror or error}. "
            "Pass the output of ng_collect_rollouts, such as results/rollouts.jsonl"
        ) from error
    except BrokenProcessPool as error:
        raise RunError(
            f"a process reading {path} was killed, possibly because memory ran out; use one process with --workers 1"
        ) from error
    found, complete = [part.columns for part in parts], max(part.stop for part in parts)
    del parts
    columns = merged(found)
    if indexed:
        _check_duplicates(path, columns)
    return Read(columns, size, max(size - complete, 0), indexed)


def has_task_index(path: Path) -> bool | None:
    """Return whether the first row has a task index; None if there is no complete line yet.

    Raises OSError if the file cannot be read.
    """
    indexed = None
    for found in itertools.islice(iter_jsonl(path, hand_over), _MAX_LINES_TRIED):
        if isinstance(found, ParsedLine):
            return "_ng_task_index" in found.value
        # An invalid line is reported when the file is read, except for the one that is being written.
        indexed = indexed if found.torn else True
    return indexed


@contextmanager
def reading_pool(workers: int, *, nice: int = 0) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes whose niceness is raised by `nice`. They are terminated if the block raises."""
    others = set(active_children())
    # Spawned, not forked: numpy's own threads do not survive a fork.
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=os.nice, initargs=(nice,)) as pool:
        try:
            yield pool
        except BaseException:
            # Leaving the pool would wait for running work whose results are no longer needed.
            started = set(active_children()) - others
            for process in started:
                process.terminate()
            for process in started:
                process.join()
            raise


def read_parts(
    path: Path, ranges: Sequence[tuple[int, int]], indexed: bool, pool: ProcessPoolExecutor | None = None
) -> Iterator[FilePart]:
    """Read the ranges, in this process or in `pool`, and yield the part of each range in order.

    `indexed` states whether rows have a task index. Raises OSError if the file cannot be read, and BrokenProcessPool if
    a process was killed.
    """
    if pool is None:
        for start, stop in ranges:
            yield read_part(path, start, stop, indexed)
        return
    with _ignore_interrupts():
        futures = deque(pool.submit(read_part, path, start, stop, indexed) for start, stop in ranges)
    while futures:
        yield futures.popleft().result()


def read_part(
    path: Path, start: int, stop: int, indexed: bool, also: Callable[[RolloutRow, int], None] | None = None
) -> FilePart:
    """Read the lines that begin in [start, stop). `also` receives every valid row and its byte offset.

    Raises OSError if the file cannot be read.
    """
    parser = RolloutParser(indexed=indexed)
    lines, torn, bad, bad_lines = Lines(path, start, stop), None, None, 0
    for found in iter_jsonl(lines, hand_over):
        if isinstance(found, ParsedLine):
            try:
                row = cast(RolloutRow, found.value)
                parser.add(row, found.offset)
                if also is not None:
                    also(row, found.offset)
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
    end = lines.end if torn is None else torn.offset if torn.number > 1 else 0
    return FilePart(parser.columns(), end, bad, bad_lines)


def _check_duplicates(path: Path, columns: Columns) -> None:
    """Raise RunError if two rows are the same rollout. `columns` must be sorted."""
    same = (np.diff(columns.task) == 0) & (np.diff(columns.repeat) == 0)
    if same.any():
        first = int(np.flatnonzero(same)[0])
        lines = sorted(_line(path, int(offset)) for offset in columns.offset[first : first + 2])
        raise RunError(
            f"{path}: lines {lines[0]} and {lines[1]} are both task {columns.task[first]}, repeat "
            f"{columns.repeat[first]} ({same.sum()} duplicate rows in total). Each rollout may only occur once: "
            "delete the duplicates, or pass the files of different runs separately."
        )


def _line(path: Path, offset: int) -> int:
    """Return the number of the line that starts at byte `offset`."""
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (chunk := file.read(min(1 << 20, offset))):
            number += chunk.count(b"\n")
            offset -= len(chunk)
    return number


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """Block SIGINT in processes started in this block, even during their startup, because the parent handles Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_NO_INDEX = "Rows have no _ng_task_index: there are no metrics by task, and intervals treat each row as its own task."
_NUMBERED = (
    "Rows have no _ng_task_index, so in the expression task is the position of a row in the file, counted from 0, and "
    "repeat is 0."
)


def load(
    path: Path,
    name: str = "",
    *,
    pass_threshold: float | None = None,
    inputs: DataFile | None = None,
    materialized: Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
    where: str | None = None,
) -> Run:
    """Load the run from a rollout file. `name` defaults to the file's stem.

    `where`: an expression; only the measured rollouts that meet it count, and no rollouts are expected. What counts as
    solved is decided from all rollouts, as in a report on the whole file. Raises OperatorError or RunError, as `read`
    does; OperatorError if `where` is not an expression or no rollout meets it.
    """
    condition = None if where is None else parsed_condition(where)
    file = read(path, workers=workers, progress=progress)
    if where is None or condition is None:
        return run_from_columns(
            path, name, file, pass_threshold=pass_threshold, inputs=inputs, materialized=materialized
        )
    file = file if file.indexed else replace(file, columns=numbered_in_file_order(file.columns))
    mask = rollouts_where(path, with_solved(file.columns, pass_threshold), condition)
    numbered = "" if file.indexed or not reads_task(where) else _NUMBERED
    if not mask.any():
        raise OperatorError(
            f"where: none of the {len(mask):,} rollouts in {path} meets {where}" + (numbered and f". {numbered}")
        )
    columns = replace(chosen(file.columns, mask), unmeasured=RolloutParser().columns().unmeasured)
    note = (
        f"Only {mask.sum():,} of {len(mask):,} measured rollouts are counted, those with {where}. Missing and "
        "failed rollouts are not counted."
    )
    rulings = [one.among(mask) for one in rulings_of(file.columns, pass_threshold) if mask[one.rows].any()]
    notes = [note, *filter(None, [numbered, "" if file.indexed else _NO_INDEX])]
    return _run(path, name, columns, RunPlan(source=SELECTION), rulings=rulings, indexed=file.indexed, notes=notes)


def _run(path: Path, name: str, columns: Columns, plan: RunPlan, **options: Any) -> Run:
    shown, shown_path = displayable(name or path.stem), displayable(str(path), 4096)
    return replace(run_of(shown, shown_path, columns, plan, **options), file=path)


def run_from_columns(
    path: Path,
    name: str,
    file: Read,
    *,
    pass_threshold: float | None = None,
    inputs: DataFile | None = None,
    materialized: Path | None = None,
) -> Run:
    """Build the run from the columns read from `path` and from its sidecar files.

    Raises OperatorError if the dataset or the materialized inputs cannot be read.
    """
    plan = read_run_plan(path, inputs=inputs, materialized=materialized)
    notes = []
    if file.torn:
        notes.append(
            f"The last line is incomplete ({file.torn} bytes) and not counted: it is being written or was truncated."
        )
    if not file.indexed:
        notes.append(_NO_INDEX)
    columns = file.columns
    if plan.exact and plan.tasks is not None and plan.repeats is not None and file.indexed:
        expected = (columns.task < plan.tasks) & (columns.repeat < plan.repeats)
        if not expected.all():
            first = int(columns.task[~expected][0]), int(columns.repeat[~expected][0])
            notes.append(
                f"{int((~expected).sum())} rows are excluded because {plan.source} does not request them (the first: "
                f"task {first[0]}, repeat {first[1]})."
            )
            columns = chosen(columns, expected)
    return _run(path, name, columns, plan, pass_threshold=pass_threshold, indexed=file.indexed, notes=notes)
