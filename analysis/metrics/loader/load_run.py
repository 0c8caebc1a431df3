"""Loads a rollout file and its sidecar files as a Run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import chosen, displayable, numbered_in_file_order
from rollyard.analysis.metrics.loader.parallel_reader import Progress, Read, read
from rollyard.analysis.metrics.loader.rollout_parser import RolloutParser
from rollyard.analysis.metrics.loader.where import parsed_condition, reads_task, rollouts_where
from rollyard.analysis.metrics.profile import Run, run_of
from rollyard.analysis.metrics.run_plan import SELECTION, RunPlan, read_run_plan
from rollyard.analysis.metrics.solved import rulings_of, with_solved
from rollyard.records.datasets.data_files import DataFile
from rollyard.records.errors import OperatorError

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
    if where is not None and condition is not None:
        file = file if file.indexed else replace(file, columns=numbered_in_file_order(file.columns))
        mask = rollouts_where(path, with_solved(file.columns, pass_threshold), condition)
        return _selected_run(path, name, file, where, mask, pass_threshold)
    return run_from_columns(path, name, file, pass_threshold=pass_threshold, inputs=inputs, materialized=materialized)


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
    shown, shown_path = displayable(name or path.stem), displayable(str(path), 4096)
    run = run_of(shown, shown_path, columns, plan, pass_threshold=pass_threshold, indexed=file.indexed, notes=notes)
    return replace(run, file=path)


def _selected_run(
    path: Path, name: str, file: Read, where: str, mask: NDArray[np.bool_], pass_threshold: float | None
) -> Run:
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
    shown, shown_path = displayable(name or path.stem), displayable(str(path), 4096)
    run = run_of(
        shown,
        shown_path,
        columns,
        RunPlan(source=SELECTION),
        rulings=[one.among(mask) for one in rulings_of(file.columns, pass_threshold) if mask[one.rows].any()],
        indexed=file.indexed,
        notes=[note, *filter(None, [numbered, "" if file.indexed else _NO_INDEX])],
    )
    return replace(run, file=path)
