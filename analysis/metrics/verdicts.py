"""Two verdicts on the same answers, as `ng_regrade` makes them: how often they agree, and which one is right.

Two runs hold the same answers if the rollouts that both have measured, by task and repeat, have the same output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from rollyard.analysis.metrics.columns import Columns, Floats, Ints, chosen
from rollyard.analysis.metrics.estimators import Estimate, clustered_mean
from rollyard.analysis.metrics.profile import Run, run_of
from rollyard.analysis.metrics.row_notes import records_of
from rollyard.analysis.metrics.run_plan import SELECTION, RunPlan
from rollyard.analysis.metrics.solved import Flags, Ruling, parts_of
from rollyard.records.jsonl import lenient, line_at
from rollyard.records.manifest import ROLLOUTS, Manifest
from rollyard.records.note_records import fold, response_key
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.types import Record, mapping

_CHEAP = ("prompt", "output_tokens", "turns", "tool_calls")
"""Columns that are equal if the answers are. They spare most comparisons of other runs the reading of all rows."""
MAX_EXAMPLES = 1000


class Answer(Record):
    """An answer on which the two verdicts differ."""

    task: int
    repeat: int
    baseline: float
    """Its reward."""
    candidate: float
    label: str
    """What the notes say of it: correct, wrong, or empty."""


class Answers(Record):
    total: int = 0
    answers: list[Answer] = Field(default_factory=list)
    """The first 1,000: those with a label, then the others, in the order of the tasks."""


class ErrorRate(Record):
    """How often a verdict contradicts the label, of the answers that have this label."""

    errors: int
    labelled: int
    tasks: int
    share: Estimate
    """With its 95% interval, clustered by task."""


class VerdictErrors(Record):
    false_accepts: ErrorRate | None
    """Of the answers labelled wrong, those that count as solved; None if no answer is labelled wrong."""
    false_refusals: ErrorRate | None
    """Of the answers labelled correct, those that do not."""


class VerdictComparison(Record):
    """Two verdicts on the same answers."""

    answers: int
    """Number of answers with both verdicts."""
    only_baseline: int
    """Number of answers that only the baseline has measured."""
    only_candidate: int
    agreement: Estimate
    """Share of the answers that both accept or both refuse; of equal rewards, if "solved" is undefined for a run."""
    equal_rewards: int
    accepted: tuple[int, int, int, int] | None
    """How many answers are accepted by both, only the candidate, only the baseline, neither; None if undefined."""
    gained: Answers
    """Only the candidate accepts; or its reward is higher, if "solved" is undefined."""
    lost: Answers
    errors: tuple[VerdictErrors, VerdictErrors] | None
    """Of the baseline and of the candidate; None if no answer is labelled, or "solved" is undefined."""


@dataclass(frozen=True)
class SameAnswers:
    """Two runs without the rollouts that only one of them has measured. Their columns have the same order."""

    baseline: Run
    candidate: Run
    response_keys: list[str]
    only_baseline: int
    only_candidate: int

    @classmethod
    def of(cls, baseline: Run, candidate: Run) -> SameAnswers | None:
        """Return None unless the rollouts that both have measured are the same answers."""
        if baseline.file is None or candidate.file is None or baseline.by_task is None or candidate.by_task is None:
            return None
        first, second = baseline.columns, candidate.columns
        _, here, there = np.intersect1d(_keys(first), _keys(second), assume_unique=True, return_indices=True)
        if not len(here) or not all(
            _equal(getattr(first, name)[here], getattr(second, name)[there]) for name in _CHEAP
        ):
            return None
        keys = list[str]()
        for offset, other in zip(first.offset[here].tolist(), second.offset[there].tolist(), strict=True):
            key = _response_key(baseline.file, offset)
            if not key or key != _response_key(candidate.file, other):
                return None
            keys.append(key)
        only = len(first) - len(here), len(second) - len(there)
        return cls(_restricted(baseline, here), _restricted(candidate, there), keys, *only)

    def compare(self, pass_threshold: float | None = None) -> VerdictComparison:
        """Compare the verdicts. `pass_threshold`: which rewards in notes mean that an answer is correct; default: 1."""
        columns, rewards = self.baseline.columns, (self.baseline.columns.reward, self.candidate.columns.reward)
        starts = np.flatnonzero(np.diff(columns.task, prepend=-1))
        before, after = self.baseline.solved, self.candidate.solved
        labels = self._labels(1.0 if pass_threshold is None else pass_threshold)
        accepted, errors = None, None
        if before is not None and after is not None:
            up, down = after & ~before, before & ~after
            accepted = int((before & after).sum()), int(up.sum()), int(down.sum()), int((~before & ~after).sum())
            if (labels != "").any():
                errors = _errors(before, labels, columns.task), _errors(after, labels, columns.task)
        else:
            up, down = rewards[1] > rewards[0], rewards[1] < rewards[0]
        return VerdictComparison(
            answers=len(columns),
            only_baseline=self.only_baseline,
            only_candidate=self.only_candidate,
            agreement=clustered_mean((~(up | down)).astype(float), starts, is_share=True),
            equal_rewards=int((rewards[0] == rewards[1]).sum()),
            accepted=accepted,
            gained=self._listed(up, labels),
            lost=self._listed(down, labels),
            errors=errors,
        )

    def _labels(self, threshold: float) -> NDArray[np.str_]:
        """Return the label of each answer, from the notes beside both files and those that were verified again. The
        last one counts, first of the candidate's.
        """
        assert self.baseline.file is not None and self.candidate.file is not None
        files = [*_verified_again(self.baseline.file), *_verified_again(self.candidate.file)]
        records = [record for file in dict.fromkeys(files) for record in records_of(file)]
        columns = self.baseline.columns
        # By task and repeat, which ng_regrade keeps, and not by _ng_task_key, which it adds to rows of other programs.
        places = zip(columns.task.tolist(), columns.repeat.tolist(), self.response_keys, strict=True)
        place_of = {place: index for index, place in enumerate(places)}
        labels = np.full(len(columns), "", "<U7")
        for index, notes in fold(records, lambda ref: place_of.get((ref.task, ref.repeat, ref.response_key))).items():
            if notes.override is not None:
                verdict = notes.override.verdict
                labels[index] = verdict if isinstance(verdict, str) else ("wrong", "correct")[verdict >= threshold]
        return labels

    def _listed(self, mask: Flags, labels: NDArray[np.str_]) -> Answers:
        columns, places = self.baseline.columns, np.flatnonzero(mask)
        places = places[np.argsort(labels[places] == "", kind="stable")][:MAX_EXAMPLES]
        return Answers(
            total=int(mask.sum()),
            answers=[
                Answer(
                    task=int(columns.task[place]),
                    repeat=int(columns.repeat[place]),
                    baseline=float(columns.reward[place]),
                    candidate=float(self.candidate.columns.reward[place]),
                    label=str(labels[place]),
                )
                for place in places.tolist()
            ],
        )


def _verified_again(path: Path) -> list[Path]:
    """Return the files of whose answers `path` has other verdicts, the first one first, and `path` itself."""
    found = [path]
    while True:
        try:
            manifest = Manifest.model_validate_json(RolloutPaths(found[0]).manifest.read_bytes())
        except (OSError, ValidationError):
            return found
        if ROLLOUTS not in manifest.identity or not manifest.input or (source := Path(manifest.input)) in found:
            return found
        found.insert(0, source)


def _errors(solved: Flags, labels: NDArray[np.str_], task: Ints) -> VerdictErrors:
    return VerdictErrors(
        false_accepts=_rate(solved, labels == "wrong", task), false_refusals=_rate(~solved, labels == "correct", task)
    )


def _rate(errors: Flags, labelled: Flags, task: Ints) -> ErrorRate | None:
    if not labelled.any():
        return None
    starts = np.flatnonzero(np.diff(task[labelled], prepend=-1))
    share = clustered_mean(errors[labelled].astype(float), starts, is_share=True)
    return ErrorRate(errors=int(errors[labelled].sum()), labelled=int(labelled.sum()), tasks=len(starts), share=share)


def _keys(columns: Columns) -> NDArray[Any]:
    return columns.task.astype(np.int64) * (1 << 31) + columns.repeat


def _equal(first: Ints | Floats, second: Ints | Floats) -> bool:
    return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


def _response_key(path: Path, offset: int) -> str:
    """Return the hash of a row's output; empty if it has none."""
    row = mapping(lenient(line_at(path, offset)))
    return response_key(row) if isinstance(mapping(row.get("response")).get("output"), list) else ""


def _restricted(run: Run, places: Ints) -> Run:
    """Return the run with only some of its measured rollouts, in the order of tasks and repeats."""
    selected = np.zeros(len(run.columns), bool)
    selected[places] = True
    if selected.all():
        return run
    rule = "" if run.profile.solved is None else run.profile.solved.rule
    rulings = [
        Ruling(name, rule, mask, None if run.solved is None else run.solved[mask]).among(selected)
        for name, mask in parts_of(run.columns)
        if (mask & selected).any()
    ]
    columns, plan = chosen(run.columns, selected), RunPlan(source=SELECTION, identity=run.profile.identity)
    return replace(run_of(run.profile.name, run.profile.path, columns, plan, rulings=rulings), file=run.file)
