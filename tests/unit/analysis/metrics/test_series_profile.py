"""The profile of several files as the steps of a training run."""

from __future__ import annotations

from pathlib import Path

from rollyard.analysis.metrics.training_steps import (
    MAX_TASKS,
    SeriesProfile,
    SummarizedStep,
    series_profile,
    step_summary,
)
from rollyard.records.types import Json
from tests.support.rollout_files import load_run, row
from tests.support.step_rows import step_rows


def profile_of(folder: Path, files: dict[int, list[Json]]) -> SeriesProfile:
    runs = {step: load_run(folder, rows, f"step_{step}") for step, rows in files.items()}
    steps = [
        SummarizedStep(step, run.profile.name, run.profile.path, step_summary(run, {}) if len(run.columns) else None)
        for step, run in runs.items()
    ]
    ends = min(runs), max(runs)
    return series_profile(steps, runs[ends[0]], runs[ends[1]])


def test_gains_and_losses_are_paired_by_content_over_all_steps(tmp_path: Path) -> None:
    found = profile_of(
        tmp_path,
        {0: step_rows({1: 0, 2: 4, 3: 1}), 5: step_rows({3: 2, 2: 2, 1: 2}), 9: step_rows({1: 4, 2: 1, 3: 1})},
    )
    assert (found.paired_by, found.value, found.columns, found.tasks) == ("content", "solve_rate", [0, 5, 9], 3)
    assert [(one.task, one.values, one.change) for one in found.gains] == [(0, [0.0, 0.5, 1.0], 1.0)]
    assert [(one.task, one.values, one.change) for one in found.losses] == [(1, [1.0, 0.5, 0.25], -0.75)]


def test_a_step_without_measured_rollouts_is_listed_without_figures(tmp_path: Path) -> None:
    found = profile_of(tmp_path, {0: step_rows({1: 0}), 5: [row(0, 0, None)], 9: step_rows({1: 4})})
    assert [(one.step, one.rollouts, bool(one.figures)) for one in found.steps] == [
        (0, 4, True),
        (5, 0, False),
        (9, 4, True),
    ]
    assert found.columns == [0, 9]


def test_only_the_tasks_with_the_largest_changes_are_kept(tmp_path: Path) -> None:
    count = MAX_TASKS + 5
    found = profile_of(
        tmp_path, {0: step_rows(dict.fromkeys(range(count), 0)), 1: step_rows(dict.fromkeys(range(count), 4))}
    )
    assert (found.tasks, found.changes.learned) == (count, count)
    assert len(found.gains) == len(found.changes.most_learned) == MAX_TASKS
