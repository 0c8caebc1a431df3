"""Prints comparisons of runs, as aligned text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollyard.analysis.metrics.run_pair import RunComparisons, RunPair
from rollyard.analysis.report.comparison_report import chance, change, label, reach, tasks_listed, value, verdict
from rollyard.analysis.report.formatting import measured
from rollyard.records.terminal import plain_line

_TASKS = 10


def print_comparisons(found: RunComparisons, written: Sequence[Path]) -> None:
    """Print each candidate's differences from the baseline, and the paths of the reports."""
    for pair in found.pairs:
        _print_pair(pair, found)
    if found.tests > 1:
        print(f"p (Holm) is corrected for {found.tests} tests; intervals are not corrected.")
    for index, path in enumerate(written):
        print(f"{'report' if index == 0 else '':<12} {path}")


def _print_pair(pair: RunPair, found: RunComparisons) -> None:
    print(plain_line(f"{pair.candidate.name} minus {pair.baseline.name}, over {pair.tasks:,} common tasks"))
    for one in (pair.baseline, pair.candidate):
        print(plain_line(f"  {one.name}: {measured(one.coverage)}, {one.tasks:,} tasks"))
    if pair.only_baseline or pair.only_candidate:
        print(plain_line(f"  not compared: {pair.only_baseline:,} and {pair.only_candidate:,} tasks of only one run"))
    for note in pair.notes:
        print(plain_line(f"  note: {note}"))
    if not pair.tasks:
        return
    print_table(_rows(pair, found))
    for difference in pair.differences:
        if difference.dataset is None:
            print(plain_line(f"  {difference.metric}: {verdict(difference, found.alpha)}"))
        if found.effect is not None and difference.tasks_needed is not None:
            effect = change(difference.metric, found.effect).lstrip("+")
            print(
                plain_line(
                    f"  {label(difference)}: detecting a difference of {effect} takes about "
                    f"{difference.tasks_needed:,} tasks ({difference.tasks:,} here)"
                )
            )
    for name, tasks in (("gained", pair.gained), ("lost", pair.lost)):
        if tasks.total:
            listed = tasks_listed(tasks, pair.changed_by, _TASKS)
            print(plain_line(f"  {name}: {tasks.total:,} tasks by {pair.changed_by}: {listed}"))
    if pair.settings:
        print(plain_line(f"  different settings: {'; '.join(pair.settings)}"))
    print()


def _rows(pair: RunPair, found: RunComparisons) -> list[tuple[str, ...]]:
    corrected = any(one.p_holm is not None for one in pair.differences)
    level = f"{100 * (1 - found.alpha):.6g}% interval"
    head = ("", "baseline", "candidate", "difference", level, "p", *(["p (Holm)"] if corrected else []), "detectable")
    rows: list[tuple[str, ...]] = [head]
    compared = {one.metric for one in pair.differences}
    costs = [one for one in pair.costs if one.metric not in compared]
    for one in [*pair.differences, *costs]:
        is_cost = one in costs
        rows.append(
            (
                label(one),
                *(value(one.metric, one.baseline), value(one.metric, one.candidate)),
                *(change(one.metric, one.difference), reach(one)),
                *(("",) if is_cost else (chance(one.p),)),
                *(("" if is_cost else chance(one.p_holm),) if corrected else ()),
                "" if is_cost else change(one.metric, one.detectable_effect).lstrip("+"),
            )
        )
    return rows


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows as aligned columns. The first column contains names."""
    rows = [tuple(plain_line(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        print(f"  {row[0]:<{widths[0]}}  {'  '.join(cells)}".rstrip())
