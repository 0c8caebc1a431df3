"""Formats numbers, intervals and coverage for the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode

from rollyard.analysis.charts import svg
from rollyard.analysis.metrics.estimators import Estimate
from rollyard.analysis.metrics.profile_records import Coverage
from rollyard.records.terminal import pluralize

NOTHING = "–"
"""Placeholder for undefined values."""
LONG = 1e9
"""Rewards of at least this absolute value are written in scientific notation."""
_NOISE = 1e-12
"""Means up to this absolute value are rounding errors of rewards that cancel out, so they are written as 0."""


def count(value: float | None) -> str:
    """Format a number without decimals: `3,200`."""
    return NOTHING if value is None else f"{value:,.0f}"


def percent(share: float | None, digits: int = 2) -> str:
    """Format a share as a percentage: `13.47%`."""
    return NOTHING if share is None else f"{share:.{digits}%}"


def points(share: float | None) -> str:
    """Format the difference between two shares in percentage points, without the unit: `+3.10`."""
    return NOTHING if share is None else f"{round(100 * share, 2) + 0.0:+.2f}"


def reward(value: float | None) -> str:
    """Format a reward with four decimals, as NeMo Gym's report does: `0.9305`. Extreme values: `5e+59`, `2.5e-06`."""
    return NOTHING if value is None else _four_digits(value, "")


def signed(value: float | None) -> str:
    """Format the difference between two rewards: `+0.0312`."""
    return NOTHING if value is None else _four_digits(value, "+")


def number(value: float | None) -> str:
    """Format a number with three significant digits, keeping all integer digits: `1,342`, `4.67`, `0.00412`."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value if abs(value) > _NOISE else 0.0:.3g}"


def seconds(value: float | None) -> str:
    """Format a duration as in the charts: `4.1 ms`, `3.24 s`, `4 min 34 s`, `2 h 5 min`."""
    return NOTHING if value is None else svg.seconds(value)


def share(part: int | None, total: int) -> str:
    """Format a count and its share of `total`: `34 (17.0%)`."""
    if part is None:
        return NOTHING
    return f"{part:,} ({part / total:.1%})" if total else f"{part:,}"


def interval(found: Estimate | None, form: str) -> str:
    """Format an interval, such as `61.12% to 66.07%`. `form`: one of FORMS."""
    if found is None or found.low is None or found.high is None:
        return NOTHING
    return f"{FORMS[form](found.low)} to {FORMS[form](found.high)}"


def measured(covered: Coverage) -> str:
    """Return the coverage, such as `487 of 500 measured`. It is shown with every headline number."""
    if covered.expected is None:
        return f"{covered.measured:,} measured"
    return f"{covered.measured:,} of {covered.expected:,} measured"


def mark_partial(text: str, covered: Coverage) -> str:
    return f"{text} *" if covered.missing and text != NOTHING else text


def coverage_sentence(covered: Coverage) -> str:
    if covered.expected is None:
        of = f" of {pluralize(covered.tasks_measured, 'task')}" if covered.tasks_measured else ""
        if covered.expected_from:
            return f"Measured: {pluralize(covered.measured, 'rollout')}{of}, {covered.expected_from}."
        return (
            f"Measured: {pluralize(covered.measured, 'rollout')}{of}. The expected number is unknown: there is no "
            "manifest, no materialized inputs and no status next to the file."
        )
    if not covered.missing:
        return f"All {covered.expected:,} expected rollouts are measured (according to {covered.expected_from})."
    tasks = ""
    if covered.tasks_expected is not None and covered.tasks_measured:
        absent = covered.tasks_expected - covered.tasks_measured
        complete = f", {covered.tasks_complete:,} of them complete" if covered.tasks_complete is not None else ""
        tasks = f" {covered.tasks_measured:,} of {covered.tasks_expected:,} tasks have at least one rollout{complete}"
        tasks += f"; {absent:,} have none and are excluded from all numbers below." if absent > 0 else "."
    return (
        f"* Only {measured(covered)}: {covered.missing:,} are missing (according to {covered.expected_from}).{tasks} "
        "Missing rollouts may differ from the measured ones because hard tasks fail more often."
    )


FORMS: dict[str, Callable[[float | None], str]] = {
    "percent": percent,
    "share": partial(percent, digits=1),
    "points": points,
    "reward": reward,
    "signed": signed,
    "number": number,
    "seconds": seconds,
}


def _four_digits(value: float, sign: str) -> str:
    if abs(value) <= _NOISE:
        value = 0.0
    if abs(value) >= LONG:
        return f"{value:{sign}.6g}"
    return f"{value:{sign}.4f}" if abs(value) >= 5e-5 or value == 0 else f"{value:{sign}.2g}"


@dataclass(frozen=True)
class ViewerLinks:
    """Addresses in a viewer that shows the files of a report. It is false without a viewer."""

    address: str = ""
    """Such as http://127.0.0.1:8080; empty: no links."""
    runs: tuple[int, ...] = ()
    """The number of each run in the viewer; empty: that in the report."""
    where: str = ""
    """The expression that the counted rollouts meet; empty: all are counted."""

    def __bool__(self) -> bool:
        return bool(self.address)

    def rollout(self, run: int, task: int, repeat: int) -> str:
        """Return the address of a rollout; empty without a viewer."""
        return f"{self._run(run)}/tasks/{task}/{repeat}" if self else ""

    def side_by_side(self, first: int, second: int, task: int, repeat: int) -> str:
        """Return the address of a rollout in two runs; empty without a viewer."""
        place = f"{task}/{repeat}"
        address = f"{self._base}/#/side-by-side/{self._number(first)}/{place}/{self._number(second)}/{place}"
        return address if self else ""

    def findings(self, run: int) -> str:
        """Return the address of the findings of a run; empty if they are not those of the report."""
        return "" if self.where else f"{self._run(run)}/findings"

    def finding(self, run: int, kind: str, filters: Mapping[str, str]) -> str:
        """Return the address of all rollouts of a finding; empty if no page shows the same ones."""
        if not filters:
            return f"{self.findings(run)}/{kind}" if self.findings(run) else ""
        conditions = [text for text in (self.where, filters.get("where", "")) if text]
        both = " and ".join(f"({text})" for text in conditions) if len(conditions) > 1 else "".join(conditions)
        return f"{self._run(run)}?{urlencode({**filters, **({'where': both} if both else {})})}"

    def comparison(self, first: int, second: int) -> str:
        """Return the address of the comparison of two runs; empty if the viewer compares other rollouts."""
        return "" if self.where else f"{self._base}/#/compare/{self._number(first)}/{self._number(second)}"

    @property
    def _base(self) -> str:
        return self.address.rstrip("/")

    def _run(self, run: int) -> str:
        return f"{self._base}/#/runs/{self._number(run)}"

    def _number(self, run: int) -> int:
        return self.runs[run] if self.runs else run
