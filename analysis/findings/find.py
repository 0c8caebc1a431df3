"""Finds what stands out in a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.analysis.findings.catalog import DETECTORS
from rollyard.analysis.findings.detector import AttemptSelection, Detector, Selection
from rollyard.analysis.findings.evidence import NO_ATTEMPTS, Evidence, FailedAttempts, Signs
from rollyard.analysis.findings.finding import Finding, Findings
from rollyard.analysis.findings.measures import attempt_finding, finding_of
from rollyard.analysis.findings.sign_reader import read_failed_attempts, read_signs
from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.metrics.profile import Run


@dataclass(frozen=True)
class Found:
    """A finding with all of its rollouts."""

    finding: Finding
    task: Ints
    repeat: Ints


def find(run: Run, signs: Signs, failed: FailedAttempts, detectors: Sequence[Detector] = DETECTORS) -> list[Found]:
    """Return the findings of a run, most important first. `signs` must cover the rows of the run."""
    if not len(run.columns):
        return []
    evidence = Evidence(run, signs.at(run.columns.offset), failed)
    found: list[Found] = []
    for detector in detectors:
        for selection in detector.select(evidence):
            if isinstance(selection, AttemptSelection):
                one = attempt_finding(detector, selection, evidence)
                found.append(Found(one, selection.task, selection.repeat))
            else:
                found.append(_found(detector, selection, evidence))
    # Detectors of a certain pattern come before those that only compare lengths, which the same rollouts may meet.
    return sorted(found, key=lambda one: (-one.finding.stake, -one.finding.count))


def findings_of(run: Run, *, workers: int = 1, has_attempts: bool = True) -> Findings | None:
    """Read the run's file and return its findings; None if the run was not loaded from a file.

    `has_attempts`: also look at the failed attempts next to the file.

    Raises OperatorError if the file cannot be read.
    """
    if run.file is None:
        return None
    stop = int(run.columns.offset.max()) + 1 if len(run.columns) else 0
    signs = read_signs(run.file, stop, workers=workers)
    found = find(run, signs, read_failed_attempts(run.file) if has_attempts else NO_ATTEMPTS)
    return Findings(findings=[one.finding for one in found], rollouts=len(run.columns))


def _found(detector: Detector, selection: Selection, evidence: Evidence) -> Found:
    columns, mask = evidence.columns, selection.mask
    return Found(finding_of(detector, selection, evidence), columns.task[mask], columns.repeat[mask])
