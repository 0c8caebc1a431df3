"""Finds the rollouts of a finding in the table of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rollyard.analysis.findings.find import Found
from rollyard.analysis.viewer.api.rollout_list import Indexes
from rollyard.analysis.viewer.findings.finding_index import FindingIndex
from rollyard.analysis.viewer.index.table import Table


def rows_of(table: Table, found: Found) -> Indexes:
    """Return the rows of the table that belong to a finding; attempts at the same rollout are one row."""
    tasks, repeats = found.task.astype(np.int64), found.repeat.astype(np.int64)
    known = np.stack([table.task, table.repeat], axis=1)
    wanted = np.unique(np.stack([tasks, repeats], axis=1), axis=0)
    pairs = np.dtype([("task", np.int64), ("repeat", np.int64)])
    return np.flatnonzero(
        np.isin(np.ascontiguousarray(known).view(pairs).ravel(), np.ascontiguousarray(wanted).view(pairs).ravel())
    )


def rows_of_kind(findings: FindingIndex, run: int, kind: str) -> Callable[[Table], Indexes]:
    """Return a function that returns the rollouts of a finding in the part of the file that has been examined."""

    def rows(table: Table) -> Indexes:
        findings.progress(run)
        found = next((one for one in findings.found(run).found if one.finding.kind == kind), None)
        return np.empty(0, np.intp) if found is None else rows_of(table, found)

    return rows
