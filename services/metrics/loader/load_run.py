"""load: a rollout file and what stands beside it -> a Run."""

from __future__ import annotations

from pathlib import Path

from rollyard.services.datasets.data_files import DataFile
from rollyard.services.metrics.loader.columns import chosen, word
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
    """The run of one file, under `name` (default: the file's). Raises OperatorError and RunError as `read` does."""
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
    """The run of what was read of `path`, and of what stands beside it. Raises OperatorError as `load` does."""
    asked = read_run_plan(path, inputs=inputs, materialized=materialized)
    notes = []
    if file.torn:
        notes.append(
            f"The last line is unfinished ({file.torn} bytes) and not counted: the file is being written, or was cut."
        )
    if not file.indexed:
        notes.append(
            "Rows do not say which task they are (_ng_task_index): nothing by task, and intervals as if each were."
        )
    columns = file.columns
    if asked.exact and asked.tasks is not None and asked.repeats is not None and file.indexed:
        expected = (columns.task < asked.tasks) & (columns.repeat < asked.repeats)
        if not expected.all():
            first = int(columns.task[~expected][0]), int(columns.repeat[~expected][0])
            notes.append(
                f"{int((~expected).sum())} rows are of rollouts that {asked.source} does not ask for (the first: task "
                f"{first[0]}, repeat {first[1]}); they are in no number."
            )
            columns = chosen(columns, expected)
    shown, place = word(name or path.stem), word(str(path), 4096)
    return run_of(shown, place, columns, asked, pass_threshold=pass_threshold, indexed=file.indexed, notes=notes)
