"""terminal: the headline numbers of a report, short."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from services.metrics.records import Profile
from services.report.document import Report
from services.report.headline import headlines
from services.report.words import NOTHING, interval, measured, points, signed, starred
from services.terminal import plain_line


def summary(report: Report, written: Sequence[Path]) -> None:
    """Print each run's headline numbers, each with what it rests on, the differences, and where the report is."""
    for profile in report.runs:
        _run(profile)
    for found in report.differences:
        print(plain_line(f"{found.name} minus {found.baseline}, over {found.tasks:,} tasks"))
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


def _run(profile: Profile) -> None:
    covered = profile.coverage
    print(plain_line(f"{profile.name}: {measured(covered)} ({profile.path})"))
    for name, value, reach in headlines(profile):
        if value != NOTHING:
            about = f"  95% interval {reach}" if reach != NOTHING else ""
            print(f"  {name:<22}  {starred(value, covered)}{about}")
    if covered.missing:
        zero = profile.rewards.bounds.missing_as_zero if profile.rewards else None
        rate = profile.solved.bounds if profile.solved else None
        said = [f"mean reward {zero:.4f} with them as zero"] if zero is not None else []
        if rate and rate.lowest is not None and rate.highest is not None:
            said.insert(0, f"success rate between {rate.lowest:.2%} and {rate.highest:.2%}")
        print(f"  * {covered.missing:,} missing: {', '.join(said) or 'nothing is measured'}")
    if profile.failures.attempts:
        kinds = ", ".join(f"{kind.kind} {kind.attempts:,}" for kind in profile.failures.kinds[:5])
        print(f"  {'failed attempts':<22}  {profile.failures.attempts:,} ({plain_line(kinds)})")
    for note in profile.notes:
        print(f"  {'note':<22}  {plain_line(note)}")
