"""Prints a short summary of a report to the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import orjson

from rollyard.analysis.charts.curves import figure_text, figure_title
from rollyard.analysis.metrics.estimators import Estimate
from rollyard.analysis.metrics.per_task import MOST_K, PerTask
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.profile_records import DatasetFigures, Profile
from rollyard.analysis.metrics.training_steps import SeriesProfile
from rollyard.analysis.report.document import Report
from rollyard.analysis.report.formatting import FORMS, NOTHING, interval, mark_partial, measured, points, signed
from rollyard.analysis.report.sections import at_common_k, dataset_name, headlines, over_tasks
from rollyard.records.data_files import DataFile
from rollyard.records.errors import RunError
from rollyard.records.rows import exact_objects
from rollyard.records.terminal import plain_line
from rollyard.records.types import Json

_FINDINGS = 3
"""Maximum number of findings that are printed; the report contains all of them."""


def summary(report: Report, written: Sequence[Path]) -> None:
    """Print each run's headline numbers with their coverage, the differences, and the paths of the reports."""
    if report.series is not None:
        _series(report.series)
    for number, profile in enumerate(report.runs):
        _run(profile)
        outstanding = report.findings[number] if number < len(report.findings) else None
        for index, one in enumerate(outstanding.findings[:_FINDINGS] if outstanding else ()):
            print(f"  {'findings' if index == 0 else '':<22}  {plain_line(one.sentence)}")
    for found in report.differences:
        if not found.tasks:
            print(plain_line(f"{found.name} against {found.baseline}: not compared"))
            for note in found.notes:
                print(f"  note          {plain_line(note)}")
            continue
        first, second = found.tasks + found.only_baseline, found.tasks + found.only_here
        common = f" common tasks (of {first:,} and {second:,})" if found.tasks < max(first, second) else " tasks"
        print(plain_line(f"{found.name} minus {found.baseline}, over {found.tasks:,}{common}"))
        if found.solve_rate is not None:
            reach = interval(found.solve_rate, "points")
            print(f"  solve rate    {points(found.solve_rate.mean)} points  95% interval {reach}")
        if found.reward is not None:
            print(f"  mean reward   {signed(found.reward.mean)}  95% interval {interval(found.reward, 'signed')}")
        print(f"  tasks         {found.better:,} better, {found.worse:,} worse, {found.equal:,} equal")
        for note in found.notes:
            print(f"  note          {plain_line(note)}")
    for index, path in enumerate(written):
        print(f"{'report' if index == 0 else '':<15} {path}")


def _series(series: SeriesProfile) -> None:
    steps = series.steps
    print(f"series of {len(steps):,} steps, from {steps[0].step:,} to {steps[-1].step:,}")
    for name in series.figures:
        if name in steps[0].figures and name in steps[-1].figures:
            first, last = (figure_text(name, one.figures[name]) for one in (steps[0], steps[-1]))
            print(plain_line(f"  {figure_title(name):<22}  {first} -> {last}"))
    print(
        f"  {'tasks':<22}  {series.changes.learned:,} better, {series.changes.forgotten:,} worse than in the first step"
    )
    for note in [*series.notes, series.changes.why_not]:
        if note:
            print(f"  {'note':<22}  {plain_line(note)}")


def _run(profile: Profile) -> None:
    covered = profile.coverage
    print(plain_line(f"{profile.name}: {measured(covered)} ({profile.path})"))
    for one in profile.by_dataset:
        print(plain_line(f"  {dataset_name(one)}: {_figures(one)}"))
    for name, value, reach in headlines(profile):
        if value != NOTHING:
            about = f"  95% interval {reach}" if reach != NOTHING else ""
            print(f"  {name:<22}  {mark_partial(value, covered)}{about}")
    if covered.missing:
        one_scale = profile.rewards is not None and not profile.rewards.why_no_mean
        zero = profile.rewards.bounds.missing_as_zero if profile.rewards and one_scale else None
        rate = profile.solved.bounds if profile.solved else None
        bounds = [f"mean reward {zero:.4f} with missing as zero"] if zero is not None else []
        if rate and rate.lowest is not None and rate.highest is not None:
            bounds.insert(0, f"success rate between {rate.lowest:.2%} and {rate.highest:.2%}")
        print(f"  * {covered.missing:,} missing: {', '.join(bounds) or 'nothing is measured'}")
    if profile.rewards and profile.rewards.why_no_mean:
        print(f"  {'mean reward':<22}  not averaged over all datasets: {plain_line(profile.rewards.why_no_mean)}")
    if attempts := profile.failures.attempts:
        kinds = ", ".join(f"{kind.kind} {kind.attempts:,}" for kind in profile.failures.kinds[:5])
        print(f"  {'failed attempts':<22}  {attempts:,} ({plain_line(kinds)})")
    for note in profile.notes:
        print(f"  {'note':<22}  {plain_line(note)}")


def _figures(one: DatasetFigures) -> str:
    def figure(name: str, found: Estimate, form: str) -> str:
        reach = interval(found, form)
        return f"{name} {FORMS[form](found.mean)}" + ("" if reach == NOTHING else f" ({reach})")

    found = [] if one.rate is None else [figure("success rate", one.rate, "percent")]
    found.append(f"{figure('mean reward', one.reward, 'reward')}, {one.rollouts:,} rollouts")
    if (at := at_common_k(one.pass_at)) is not None and at.k > 1:
        found.append(f"{figure(f'pass@{at.k}', at.any, 'percent')} {over_tasks(at)}")
        if at.consensus is not None:
            found.append(f"{figure(f'cons@{at.k}', at.consensus, 'percent')} {over_tasks(at)}")
    return ", ".join(found)


def task_rows(run: Run, pass_threshold: float | None, inputs: DataFile | None) -> Iterator[bytes]:
    """Yield a JSON line for each measured task, ordered by index, with the row that it has in `inputs`.

    Raises OperatorError if the dataset cannot be read, and RunError if it is invalid or lacks a measured task.
    """
    grouped = run.by_task
    if grouped is None:
        return
    rows = None if inputs is None else enumerate(exact_objects(inputs, RunError))
    consensus = _majority_correct(grouped)
    for index, task in enumerate(grouped.task.tolist()):
        row: Json = {}
        if rows is not None:
            dataset_row = next((line.value for number, line in rows if number == task), None)
            if dataset_row is None:
                raise RunError(f"{inputs} has no row {task + 1}, but {run.profile.path} has rollouts for task {task}")
            row = dataset_row
        first, count = int(grouped.starts[index]), int(grouped.measured[index])
        own = run.columns.reward[first : first + count]
        found: Json = {
            "_ng_task_index": task,
            "avg_reward": float(grouped.mean[index]),
            "std_reward": float(grouped.std[index]),
            "min_reward": float(grouped.min[index]),
            "max_reward": float(grouped.max[index]),
            "median_reward": float(np.median(own)),
            "total_samples": count,
            "expected_samples": run.profile.coverage.repeats,
        }
        if grouped.solved is not None:
            passed = int(grouped.solved[index])
            found |= {"pass_rate": passed / count, "pass_rate_total": count, "pass_rate_passed": passed}
            found["pass_threshold"] = pass_threshold
            if consensus is not None:
                found["majority_correct"] = consensus[index]
        yield orjson.dumps({**row, **found}) + b"\n"


def _majority_correct(grouped: PerTask) -> list[bool | None] | None:
    """Return cons@k with all rollouts of each task, as yes or no; None above MOST_K rollouts or if undefined."""
    found: list[bool | None] = [None] * len(grouped)
    for one in grouped.votes or []:
        if one.rollouts <= MOST_K:
            for task, share in zip(one.tasks.tolist(), one.shares[:, one.rollouts - 1].tolist(), strict=True):
                found[task] = share == 1.0
    return None if grouped.votes is None else found
