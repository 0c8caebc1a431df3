"""Defines ng_doctor's findings and formats them as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollyard.records.types import Record

Status = Literal["ok", "note", "absent", "failed"]


class Finding(Record):
    """The result of one check."""

    name: str
    status: Status
    """`note`: works with limitations. `absent`: an optional extra is not installed. `failed`: a run would fail."""
    found: str
    mend: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name=name, status="ok", found=found)


def note(name: str, found: str, mend: str = "") -> Finding:
    return Finding(name=name, status="note", found=found, mend=mend)


def failed(name: str, found: str, mend: str = "") -> Finding:
    return Finding(name=name, status="failed", found=found, mend=mend)


def shown(finding: Finding) -> str:
    """Format a finding as one line, followed by a line with the fix if there is one."""
    mark = {"ok": "ok", "note": "note", "absent": "-", "failed": "FAILED"}[finding.status]
    lines = [f"  {mark:<7} {finding.name:<14} {finding.found}"]
    if finding.mend:
        lines.append(f"  {'':<7} {'':<14} fix: {finding.mend}")
    return "\n".join(lines)


def verdict(findings: Sequence[Finding]) -> str:
    wrong = [finding.name for finding in findings if finding.status == "failed"]
    return f"would fail: {', '.join(wrong)}" if wrong else "Everything that a run requires is available."
