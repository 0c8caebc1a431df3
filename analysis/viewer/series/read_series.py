"""Reads all files of a series, for programs that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollyard.analysis.metrics.training.series_profile import SummarizedStep
from rollyard.analysis.viewer.series.step_files import StepFile
from rollyard.analysis.viewer.series.step_reader import StepReader


def read_series(
    files: Sequence[tuple[int, str, Path]], *, threshold: float | None = None
) -> tuple[list[SummarizedStep], tuple[str, ...]]:
    """Return the summary of each (step, name, path), and why files could not be read. Rewards of at least `threshold`
    count as solved.
    """
    steps = [StepFile(step, number, name, path) for number, (step, name, path) in enumerate(files)]
    reader = StepReader(threshold=threshold)
    try:
        reader.progress(steps)
        reader.wait()
        found = reader.progress(steps)
    finally:
        reader.close()
    summarized = [SummarizedStep(one.step, one.name, str(one.path), found.summaries.get(one.step)) for one in steps]
    return summarized, found.errors
