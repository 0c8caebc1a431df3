"""Numbers as people read them, and the one way to say how much of a run is measured."""

from __future__ import annotations

from rollyard.services.metrics.profile_records import Coverage, Estimate

NOTHING = "–"
"""Where nothing can be said."""
LONG = 1e9
"""Rewards from there on are written as powers of ten."""
_NOISE = 1e-12
"""Means of rewards that cancel out leave about so much: it is written as 0."""


def count(value: float | None) -> str:
    """`3,200`."""
    return NOTHING if value is None else f"{value:,.0f}"


def several(number: int, noun: str) -> str:
    """`1 rollout`, `3,200 rollouts`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def percent(share: float | None, digits: int = 2) -> str:
    """`13.47%`."""
    return NOTHING if share is None else f"{share:.{digits}%}"


def points(share: float | None) -> str:
    """A difference of two shares, `+3.1 points`."""
    return NOTHING if share is None else f"{round(100 * share, 2) + 0.0:+.2f}"


def reward(value: float | None) -> str:
    """`0.9305`: four digits, as in NeMo Gym's report; `5e+59` and `2.5e-06` where they would not show it."""
    return NOTHING if value is None else _four_digits(value, "")


def signed(value: float | None) -> str:
    """A difference of two rewards."""
    return NOTHING if value is None else _four_digits(value, "+")


def number(value: float | None) -> str:
    """Three digits that count, none lost before the point: `1,342`, `4.67`, `0.00412`."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value if abs(value) > _NOISE else 0.0:.3g}"


def seconds(value: float | None) -> str:
    """`4.1 ms`, `3.24 s`, `12 min`, `4.2 h`."""
    if value is None:
        return NOTHING
    if value < 1:
        return f"{number(1000 * value)} ms"
    if value < 600:
        return f"{number(value)} s"
    return f"{value / 60:.0f} min" if value < 36_000 else f"{value / 3600:,.1f} h"


def share(part: int | None, whole: int) -> str:
    """`34 (17.0%)`."""
    if part is None:
        return NOTHING
    return f"{part:,} ({part / whole:.1%})" if whole else f"{part:,}"


def interval(found: Estimate | None, form: str) -> str:
    """`61.12% to 66.07%`; `form`: percent, points, reward or signed."""
    if found is None or found.low is None or found.high is None:
        return NOTHING
    write = {"percent": percent, "points": points, "reward": reward, "signed": signed}[form]
    return f"{write(found.low)} to {write(found.high)}"


def measured(covered: Coverage) -> str:
    """`487 of 500 measured`: stands on every headline number."""
    if covered.expected is None:
        return f"{covered.measured:,} measured"
    return f"{covered.measured:,} of {covered.expected:,} measured"


def mark_partial(text: str, covered: Coverage) -> str:
    """A number of a run that is not whole, marked as such."""
    return f"{text} *" if covered.missing and text != NOTHING else text


def coverage_sentence(covered: Coverage) -> str:
    """A sentence on what is missing."""
    if covered.expected is None:
        of = f" of {several(covered.tasks_measured, 'task')}" if covered.tasks_measured else ""
        return (
            f"Measured: {several(covered.measured, 'rollout')}{of}. How many were asked for is not known: no manifest, "
            "materialized inputs or status stands beside the file."
        )
    if not covered.missing:
        return f"All {covered.expected:,} rollouts asked for are measured (by {covered.expected_from})."
    tasks = ""
    if covered.tasks_expected is not None and covered.tasks_measured:
        absent = covered.tasks_expected - covered.tasks_measured
        whole = f", {covered.tasks_complete:,} of them whole" if covered.tasks_complete is not None else ""
        tasks = f" {covered.tasks_measured:,} of {covered.tasks_expected:,} tasks have any{whole}"
        tasks += f"; {absent:,} have none and are in no number below." if absent > 0 else "."
    return (
        f"* Only {measured(covered)}: {covered.missing:,} are missing (by {covered.expected_from}).{tasks} What is "
        "missing may not be like what is there: hard tasks fail more often."
    )


def _four_digits(value: float, sign: str) -> str:
    if abs(value) <= _NOISE:
        value = 0.0
    if abs(value) >= LONG:
        return f"{value:{sign}.6g}"
    return f"{value:{sign}.4f}" if abs(value) >= 5e-5 or value == 0 else f"{value:{sign}.2g}"
