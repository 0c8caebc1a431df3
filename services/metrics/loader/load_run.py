"""Loads a rollout file and its sidecar files as a Run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rollyard.services.datasets.data_files import DataFile
from rollyard.services.metrics.loader.columns import chosen, displayable
from rollyard.services.metrics.loader.parallel_reader import Progress, Read, read
from rollyard.services.metrics.profile import Run, run_of
from rollyard.services.metrics.run_plan import read_run_plan


def load(
    path: Path,
    name: str = "",
    *,
    pass_threshold: float | None = None,
    inputs: DataFile | None = None,
    materialized: Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Run:
    """Load the run from a rollout file. `name` defaults to the file's stem. Raises OperatorError or RunError, as `read`
    does.
    """
    file = read(path, workers=workers, progress=progress)
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
        notes.append(
            "Rows have no _ng_task_index: there are no metrics by task, and intervals treat each row as its own task."
        )
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
