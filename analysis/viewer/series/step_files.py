"""StepFile: a rollout file as a step of a series, and where the series of a viewer come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollyard.analysis.viewer.training.training_folder import TrainingFolder
from rollyard.analysis.viewer.training.training_index import evaluation_number, rollouts_number

FILES, EVALUATIONS, ROLLOUTS = "files", "evaluations", "rollouts"


@dataclass(frozen=True)
class StepFile:
    """A rollout file of a series."""

    step: int
    run: int
    """Number of the file in the viewer."""
    name: str
    path: Path


SeriesSource = Callable[[], Mapping[str, Sequence[StepFile]]]
"""Returns the files of each series by its name, in ascending order of steps. A training run gets more of them."""


def files_as_series(files: Sequence[tuple[str, Path]], steps: Sequence[int]) -> SeriesSource:
    """Return the series of files with known steps, of which there is one for each file."""
    named = zip(steps, enumerate(files), strict=True)
    found = sorted((StepFile(step, run, name, path) for step, (run, (name, path)) in named), key=lambda one: one.step)
    return lambda: {FILES: found}


def training_series(folder: TrainingFolder) -> SeriesSource:
    """Return the two series of a training run: its evaluations, which have the same tasks, and its rollouts."""

    def source() -> Mapping[str, Sequence[StepFile]]:
        evaluations, rollouts = folder.evaluations(), folder.rollouts()
        found = {
            EVALUATIONS: [StepFile(s, evaluation_number(s), f"step {s}", path) for s, path in evaluations.items()],
            ROLLOUTS: [StepFile(s, rollouts_number(s), f"step {s}", path) for s, path in rollouts.items()],
        }
        return {name: files for name, files in found.items() if files}

    return source
