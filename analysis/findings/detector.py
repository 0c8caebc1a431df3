"""What a detector is: it selects rollouts from the evidence of a run, and what it selects becomes a `Finding`.

Evidence is a few numbers of each rollout, the signs, joined with the columns of the metrics.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from rollyard.analysis.findings.row_view import RowView
from rollyard.analysis.metrics.columns import Columns, Floats, Ints
from rollyard.analysis.metrics.estimators import Estimate
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_plan import FailedAttempts
from rollyard.analysis.metrics.solved import Flags
from rollyard.records.types import Record


class Category(StrEnum):
    """What a finding is about, and therefore how it is ranked."""

    EXPLOIT = "exploit"
    """Rollouts were rewarded although they look as if the verifier was deceived."""
    REWARD = "reward"
    """The reward and the success of rollouts contradict each other."""
    BEHAVIOUR = "behaviour"
    """The policy does something that costs reward, such as giving up."""
    FORMAT = "format"
    """The environment cannot use what the policy writes."""
    TRAINING = "training"
    """Rollouts that teach the policy nothing."""
    FAILURE = "failure"
    """The stack or an environment fails."""


class Example(Record):
    task: int
    repeat: int


class Finding(Record):
    """One observation about a run. All texts are plain; renderers must escape them."""

    kind: str
    """Identifies the detector, such as `no_tool_used`."""
    title: str
    category: Category
    sentence: str
    definition: str
    """What is counted, with the threshold and the reason for it."""
    unit: str = "rollouts"
    """What is counted: `rollouts` or `attempts`."""
    count: int
    of: int
    """Number of measured rollouts, or of attempts, among which the detector looked."""
    tasks: int
    """Number of tasks to which the counted rollouts belong."""
    share: Estimate
    mean_reward: Estimate | None = None
    """Of the counted rollouts; None if rewards are not comparable or nothing is measured."""
    mean_reward_others: Estimate | None = None
    solved: int | None = None
    stake: float = Field(ge=0.0, le=1.0)
    """Estimate of the share of the run's rewards that the finding concerns. Findings are sorted by it."""
    examples: list[Example] = Field(default_factory=list)
    """Up to three rollouts of different tasks."""
    filters: dict[str, str] = Field(default_factory=dict)
    """Filters of the viewer's list that select exactly these rollouts; empty if none do."""


class Findings(Record):
    findings: list[Finding]
    """Most important first."""
    rollouts: int
    """Number of measured rollouts that were examined."""


SIGN_INTS = ("offset", "flags", "expected", "extracted", "same_text", "subject")
SIGN_FLOATS = ("length", "partial_rewards", "created")
_ARRAYS = (*SIGN_INTS, *SIGN_FLOATS)


@dataclass(frozen=True)
class Signs:
    """A few numbers of each row of a file, in the order of the file. Uses 72 bytes per row."""

    kinds: tuple[str, ...]
    """Row detectors; bit i of `flags` belongs to `kinds[i]`."""
    offset: Ints
    """Byte offset of the row."""
    flags: Ints
    expected: Ints
    """Hash of the gold answer; 0 if the row has none."""
    extracted: Ints
    """Hash of the extracted answer, equal to that of the same gold answer; 0 if there is none."""
    same_text: Ints
    """Hash of the messages; 0 if nothing is known that the same text cannot be right for."""
    subject: Ints
    """Hash of what the messages answer. Its last two bits: 1 if it is yes or no, 3 if it is the letter of a choice,
    2 if it is another gold answer or, for a program, the numbers of its prompt; 0 for `same_text` 0.
    """
    length: Floats
    """Characters that the model wrote, except in tool calls."""
    partial_rewards: Floats
    """How often the most frequent positive step reward occurs; NaN if the row has no step rewards."""
    created: Floats
    """Unix time of the response; NaN if it is not recorded."""
    end: int = 0

    def at(self, offsets: Ints) -> Signs:
        """Return the signs of the rows at these offsets, which must all have been read."""
        rows = np.searchsorted(self.offset, offsets)
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in _ARRAYS}
        return replace(self, **arrays)


def joined(parts: Sequence[Signs]) -> Signs:
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in (*SIGN_INTS, *SIGN_FLOATS)
    }
    return replace(parts[0], **arrays, end=max(part.end for part in parts))


@dataclass(frozen=True)
class Evidence:
    """What detectors look at: arrays over the measured rollouts, sorted by (task, repeat)."""

    run: Run
    signs: Signs
    """In the order of the run's columns."""
    failed: FailedAttempts

    def __len__(self) -> int:
        return len(self.run.columns)

    @property
    def columns(self) -> Columns:
        return self.run.columns

    @property
    def is_one_scale(self) -> bool:
        """Whether rewards of different rollouts can be compared."""
        rewards = self.run.profile.rewards
        return rewards is not None and not rewards.why_no_mean

    @cached_property
    def value(self) -> Floats:
        """What a rollout is worth: its reward, or whether it is solved if rewards have different scales."""
        if self.is_one_scale or self.run.solved is None:
            return self.columns.reward
        return self.run.solved.astype(float)

    @cached_property
    def span(self) -> tuple[float, float]:
        """The 5th and 95th percentiles of the values, because of outliers; the extremes if these are equal."""
        low, high = np.percentile(self.value, [5, 95]).tolist()
        return (low, high) if high > low else (float(self.value.min()), float(self.value.max()))

    @cached_property
    def paid(self) -> Flags:
        """Rollouts that were rewarded: the solved ones and, if the environment does not report success, those in the
        upper half of the range of rewards; all, if all have the same positive reward.
        """
        solved = self.run.solved
        if solved is not None and not np.isnan(self.columns.success).all():
            return solved
        low, high = self.span
        upper = np.asarray(self.value > (low + high) / 2 if high > low else self.value > 0)
        return upper if solved is None else upper | solved

    @cached_property
    def starts(self) -> Ints:
        return np.flatnonzero(np.diff(self.columns.task, prepend=-1))

    def flagged(self, kind: str) -> Flags:
        return np.asarray(self.signs.flags >> self.signs.kinds.index(kind) & 1, bool)

    def ended(self, *reasons: str) -> Flags:
        end = self.columns.end
        codes = [code for code, name in enumerate(end.names) if name in reasons]
        return np.isin(end.codes, codes)


@dataclass(frozen=True)
class Selection:
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
