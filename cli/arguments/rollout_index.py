"""Opens the rollout files, or the training run, that ng_viewer shows."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.step_reader import SeriesSource, files_as_series, training_series
from rollyard.analysis.viewer.training import TrainingFolder, TrainingIndex
from rollyard.cli.arguments.file_steps import file_steps
from rollyard.cli.arguments.positional import rollout_files
from rollyard.records.errors import OperatorError
from rollyard.records.rollouts.rollout_files import named_files


def training_run_in(given: Sequence[Path]) -> Path | None:
    """Return the folder of a training run among the arguments. Raises OperatorError if it is not the only one."""
    runs = [path for path in given if path.is_dir() and TrainingFolder(path).is_training_run]
    if runs and len(given) > 1:
        raise OperatorError(
            f"{str(runs[0])!r} is a training run, which is shown alone; found {len(given)} files and folders. For "
            "curves of several runs in one picture, use python -m rollyard.analysis.charts.curves.draw"
        )
    return runs[0] if runs else None


def open_files(
    given: Sequence[Path],
    names: Sequence[str],
    steps: Sequence[int],
    *,
    threshold: float | None = None,
    workers: int | None = None,
) -> tuple[FileIndex, SeriesSource]:
    """Return the index of the files and their series, in the order of their steps.

    Raises OperatorError if the files cannot be shown together.
    """
    files = named_files(rollout_files(given), names)
    known = file_steps([path for _, path in files], steps)
    # Without steps, the order of the files takes their place, for those who open the address of the series.
    in_order = sorted(zip(known or range(len(files)), files, strict=True))
    files = [file for _, file in in_order]
    source = files_as_series(files, [step for step, _ in in_order])
    index = FileIndex(
        files,
        version=version("rollyard"),
        threshold=threshold,
        workers=workers,
        series=known is not None,
    )
    return index, source


def open_training_run(
    root: Path, *, threshold: float | None = None, workers: int | None = None
) -> tuple[TrainingIndex, SeriesSource]:
    """Return the index of a training run and its series."""
    index = TrainingIndex(root, version=version("rollyard"), threshold=threshold, workers=workers)
    return index, training_series(index.folder)
