"""Prints the verdict of a gate."""

from __future__ import annotations

from rollyard.analysis.gate.records import GateVerdict, RuleResult
from rollyard.analysis.report.comparison_report import change, tasks_listed, value
from rollyard.analysis.report.formatting import measured
from rollyard.records.io.terminal import plain_line

_TASKS = 10


def print_verdict(found: GateVerdict) -> None:
    """Print the decision, the rules behind it, and the tasks that regressed."""
    print(plain_line(f"{found.decision}: {found.candidate.name} against {found.baseline.name}, {found.tasks:,} tasks"))
    for result in found.rules:
        _print_rule(result)
    for one in (found.baseline, found.candidate):
        print(plain_line(f"  {one.name}: {measured(one.coverage)} ({one.path})"))
    for name, tasks in (("regressed", found.regressed), ("improved", found.improved)):
        if tasks.total:
            listed = tasks_listed(tasks, found.changed_by, _TASKS)
            print(plain_line(f"  {name}: {tasks.total:,} tasks by {found.changed_by}: {listed}"))
    if found.settings:
        print(plain_line(f"  different settings, allowed: {'; '.join(found.settings)}"))
    for note in found.notes:
        print(plain_line(f"  note: {note}"))


def _print_rule(result: RuleResult) -> None:
    one = result.difference
    print(plain_line(f"  {result.decision:<12}  {result.requirement}"))
    print(
        plain_line(
            f"                {value(one.metric, one.baseline)} -> {value(one.metric, one.candidate)}, difference "
            f"{change(one.metric, one.difference)} over {one.tasks:,} tasks. {result.reason}"
        )
    )
    if result.missing_baseline or result.missing_candidate:
        print(
            f"                Missing rollouts: {result.missing_baseline:,} of the baseline, "
            f"{result.missing_candidate:,} of the candidate. The lower bound counts them against the candidate, the "
            "upper bound in its favour."
        )
