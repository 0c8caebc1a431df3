"""What ng_doctor finds, one thing at a time, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rollyard.services.types import Record

Status = Literal["ok", "note", "absent", "failed"]


class Finding(Record):
    """One thing that was looked at."""

    name: str
    status: Status
    """`note`: works, with something to know. `absent`: an extra that nobody may need. `failed`: a run would fail."""
    found: str
    mend: str = ""


def ok(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name=name, status="ok", found=found)


def note(name: str, found: str, mend: str = "") -> Finding:
    """It works, but."""
    return Finding(name=name, status="note", found=found, mend=mend)


def failed(name: str, found: str, mend: str = "") -> Finding:
    """A run would fail."""
    return Finding(name=name, status="failed", found=found, mend=mend)


def shown(finding: Finding) -> str:
    """The line of a finding, and below it the mend."""
    mark = {"ok": "ok", "note": "note", "absent": "-", "failed": "FAILED"}[finding.status]
    lines = [f"  {mark:<7} {finding.name:<14} {finding.found}"]
    if finding.mend:
        lines.append(f"  {'':<7} {'':<14} mend: {finding.mend}")
    return "\n".join(lines)


def verdict(findings: Sequence[Finding]) -> str:
    """The last line."""
    wrong = [finding.name for finding in findings if finding.status == "failed"]
    return f"would fail: {', '.join(wrong)}" if wrong else "Everything that a run needs is here."
