"""Finds the steps of files that are a series, such as the evaluations of several checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollyard.analysis.metrics.run_plan import manifest_model
from rollyard.records.errors import OperatorError

_PARENTS = 2


def file_steps(paths: Sequence[Path], given: Sequence[int]) -> list[int] | None:
    """Return the step of each file: those in `given`, or those that all files' names, folders or manifests state. None
    if there are fewer than two files, or if the steps are unknown or not different.

    Raises OperatorError if `given` does not fit the files.
    """
    if given:
        if len(given) != len(paths):
            raise OperatorError(f"steps has {len(given)} numbers for {len(paths)} files; expected one for each file")
        if len(set(given)) < len(given):
            raise OperatorError(f"steps is {list(given)}; expected a different step for each file")
        return list(given)
    if len(paths) < 2:
        return None
    steps = [_step(path) for path in paths]
    known = [step for step in steps if step is not None]
    return known if len(set(known)) == len(paths) else None


def _step(path: Path) -> int | None:
    """Return the step in the file's name, in the names of the folders around it, or in the model's name."""
    from rollyard.launchers.evaluation.checkpoints import step_of  # most commands get one file, which is no series

    folders = path.absolute().parents[:_PARENTS]
    names = [path.stem, *(folder.name for folder in folders), manifest_model(path)]
    return next((step for name in names if name and (step := step_of(name)) is not None), None)
