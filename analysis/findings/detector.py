"""Defines what a detector is. Its docstring is its definition: what it counts, its threshold, and the reason for it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from rollyard.analysis.findings.evidence import Evidence, Flags
from rollyard.analysis.findings.finding import Category
from rollyard.analysis.findings.row_view import RowView
from rollyard.analysis.metrics.loader.columns import Ints


@dataclass(frozen=True)
class Selection:
    """Measured rollouts that a detector selects."""

    mask: Flags
    what: str
    """What they did, to complete the sentence `12% of the rollouts (24 of 200) ...`."""
    of: Flags | None = None
    """The rollouts among which the detector looked; None for all."""
    filters: dict[str, str] = field(default_factory=dict)
    """Filters of the viewer's list that select the same rollouts."""


@dataclass(frozen=True)
class AttemptSelection:
    """Attempts that a detector selects among all attempts, measured or failed."""

    task: Ints
    repeat: Ints
    what: str
    of: int


class Detector(ABC):
    """Selects rollouts. Detectors have no state."""

    kind: ClassVar[str]
    title: ClassVar[str]
    category: ClassVar[Category]

    @property
    def definition(self) -> str:
        return " ".join((inspect.getdoc(type(self)) or "").split())

    @abstractmethod
    def select(self, evidence: Evidence) -> Iterator[Selection | AttemptSelection]:
        """Yield at most one selection, based on all rollouts."""


class RowDetector(Detector):
    """A detector that looks at each row separately. Rows are read once for all detectors."""

    what: ClassVar[str]
    """What the selected rollouts did; see Selection."""
    least: ClassVar[float] = 0.01
    """Minimum share of the rollouts, below which there is no finding. Rare oddities are not worth a reader's time."""

    @abstractmethod
    def flags(self, row: RowView) -> bool:
        """Return whether the row has the property."""

    def counted(self, evidence: Evidence) -> Flags:
        """Return which measured rollouts count if they have the property; by default all."""
        return np.ones(len(evidence), bool)

    def select(self, evidence: Evidence) -> Iterator[Selection]:
        mask = evidence.flagged(self.kind) & self.counted(evidence)
        if mask.sum() >= max(1, self.least * len(evidence)):
            yield Selection(mask, self.what)


class UnsolvedDetector(RowDetector):
    """A detector of behaviour that costs reward; rollouts that solved their task do not count."""

    def counted(self, evidence: Evidence) -> Flags:
        return ~evidence.paid


class ExploitDetector(RowDetector):
    """A detector of exploits. Only rewarded rollouts count, and a single one is worth a look."""

    category = Category.EXPLOIT
    least = 0.0

    def counted(self, evidence: Evidence) -> Flags:
        return evidence.paid
