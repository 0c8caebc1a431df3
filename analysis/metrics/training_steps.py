"""Numbers by training step: of a trainer's metrics.jsonl (MetricsFile) and of rollout files (SeriesProfile)."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.columns import Floats, Ints, displayable, padded
from rollyard.analysis.metrics.comparison import BY_CONTENT, BY_PROMPT, SAME_INPUT, Side, side_by
from rollyard.analysis.metrics.estimators import Estimate, clustered_mean
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_pair import REWARD, SOLVE_RATE, PairedDifference, TaskChange, TaskChanges
from rollyard.records.jsonl import Lines, iter_jsonl, skip
from rollyard.records.tokens import generated_log_probs, least_entropy, model_calls
from rollyard.records.types import MAX_REWARD, TOKEN_FIELDS, Json, Record, is_number

_TAIL = 256
"""Bytes before the end of what was read, by which a rewritten file is recognised."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of a metric, in the order of their steps."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


class MetricsFile:
    """Reads complete lines as they appear. The last line with a step and a name counts: a run that resumed from a
    checkpoint repeats steps. A file that was rewritten is read again; lines that are no metrics are skipped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.revision = 0
        """Changes when something was read."""
        self.updated: float | None = None
        """Unix time of the last line."""
        self._values: dict[str, dict[int, float]] = {}
        self._steps: set[int] = set()
        self._end = 0
        self._tail = b""

    def advance(self) -> bool:
        """Read what is new. Return whether there was anything. A file that is missing or unreadable counts as empty."""
        try:
            with self.path.open("rb") as file:
                rewritten = os.pread(file.fileno(), len(self._tail), self._end - len(self._tail)) != self._tail
                if rewritten:
                    self._forget()
                lines = Lines(file, self._end, whole=True)
                for line in iter_jsonl(lines, skip):
                    self._add(line.value)
                read = lines.end > self._end
                if read:
                    self._end = lines.end
                    self._tail = os.pread(file.fileno(), min(_TAIL, self._end), max(self._end - _TAIL, 0))
        except OSError:
            rewritten, read = self._end > 0, False
            self._forget()
        self.revision += rewritten or read
        return rewritten or read

    @property
    def steps(self) -> list[int]:
        """All steps with a value, in ascending order."""
        return sorted(self._steps)

    @property
    def names(self) -> list[str]:
        """The names of all metrics, in the order in which they first appear."""
        return list(self._values)

    def curve(self, name: str) -> Curve | None:
        values = sorted(self._values.get(name, {}).items())
        return Curve(name, *map(tuple, zip(*values, strict=True))) if values else None

    def curves(self) -> dict[str, Curve]:
        """Return all curves by name, in the order of `names`."""
        return {name: curve for name in self._values if (curve := self.curve(name)) is not None}

    def at(self, step: int) -> dict[str, float]:
        """Return the metrics of a step by name."""
        return {name: values[step] for name, values in self._values.items() if step in values}

    def _add(self, line: Json) -> None:
        step = line.get("step")
        if type(step) is not int or step < 0:
            return
        if is_number(time := line.get("time")):
            self.updated = time
        for name, value in line.items():
            if "/" in name and is_number(value):
                self._values.setdefault(name, {})[step] = float(value)
                self._steps.add(step)

    def _forget(self) -> None:
        self._values, self._steps, self._end, self._tail, self.updated = {}, set(), 0, b"", None


COMPONENTS = "reward_components"
RARE = math.log(0.01)
"""Log-probability below which a token counts as rare."""
LOG_PROB, RARE_TOKENS, TOKEN_ENTROPY = "log_prob", "rare_tokens", "token_entropy"
"""Of the recorded tokens of a rollout: mean log-probability, share below 1%, and mean lower bound of the entropy."""
_MAX_NAMES = 64
"""Upper bound on the fields of a file, because rows are user input."""
_MAX_DEPTH = 3
_OTHERS = frozenset(
    {
        *("responses_create_params", "response", "reward", "success", "timings", "token_trail", "agent_ref"),
        *("mask_sample", "truncated", "total_reward", "step_rewards", "reset_info", "usage", *TOKEN_FIELDS),
    }
)
"""Keys that have columns of their own, or that are not part of a verdict."""


@dataclass(frozen=True)
class NumberColumns:
    """The numbers of rows, with NaN for missing values. All arrays have the same length."""

    offset: Ints
    """Byte offset of each row in the file."""
    values: dict[str, Floats]
    """By dotted name, such as `reward_components.format`. True is 1 and false is 0."""

    def at(self, offsets: Ints) -> dict[str, Floats]:
        """Return the numbers of the rows that begin at `offsets`."""
        order = np.argsort(self.offset)
        rows = order[np.searchsorted(self.offset, offsets, sorter=order)]
        return {name: column[rows] for name, column in self.values.items()}


class RowNumbers:
    def __init__(self) -> None:
        self._offsets = array("q")
        self._values: dict[str, array[float]] = {}

    def add(self, row: Mapping[str, Any], offset: int) -> None:
        """Add the row that begins at byte `offset`."""
        count = len(self._offsets)
        self._offsets.append(offset)
        for name, value in _numbers(row):
            if name not in self._values and len(self._values) >= _MAX_NAMES:
                continue
            column = self._values.setdefault(name, array("d"))
            if len(column) <= count:  # a name that occurs twice counts once
                column.extend([math.nan] * (count - len(column)))
                column.append(value)

    def columns(self) -> NumberColumns:
        """Return what was collected, in the order in which rows were added."""
        count = len(self._offsets)
        values = {name: padded(np.asarray(column), count) for name, column in self._values.items()}
        return NumberColumns(np.array(self._offsets, np.int64), values)


def joined(parts: Sequence[NumberColumns]) -> NumberColumns:
    names = list(dict.fromkeys(name for part in parts for name in part.values))[:_MAX_NAMES]
    none = np.empty(0)
    values = {
        name: np.concatenate([padded(part.values.get(name, none), len(part.offset)) for part in parts])
        for name in names
    }
    return NumberColumns(np.concatenate([part.offset for part in parts]), values)


def _numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if key not in _OTHERS and not key.startswith("_ng_"):
            yield from _leaves(displayable(key), value, 1)
    yield from _token_numbers(row)


def _leaves(name: str, value: Any, depth: int) -> Iterator[tuple[str, float]]:
    if isinstance(value, bool) or is_number(value, MAX_REWARD):
        yield name, float(value)
    elif isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{displayable(str(key))}", inner, depth + 1)


def _token_numbers(row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    log_probs = [value for values in generated_log_probs(row) for value in values]
    entries = (entry for call in model_calls(row) for entry in call.entries)
    entropies = [bound for entry in entries if (bound := least_entropy(entry)) is not None]
    if log_probs:
        yield LOG_PROB, sum(log_probs) / len(log_probs)
        yield RARE_TOKENS, sum(value < RARE for value in log_probs) / len(log_probs)
    if entropies:
        yield TOKEN_ENTROPY, sum(entropies) / len(entropies)


ZERO_VARIANCE = "zero_variance"
_TOKENS = (LOG_PROB, RARE_TOKENS, TOKEN_ENTROPY)
LENGTHS = ("output_tokens", "turns", "tool_calls")


@dataclass(frozen=True)
class StepSummary:
    """The figures of a step, and the results of its tasks."""

    rollouts: int
    figures: dict[str, Estimate]
    """Means with intervals clustered by task. Those that a report has are the report's."""
    varying: frozenset[str]
    """The figures whose values differ between rollouts of the same task."""
    sides: dict[str, Side]
    """The tasks by their keys: BY_CONTENT, BY_PROMPT and SAME_INPUT, as far as the rows have these."""
    input: str
    """`input_sha256` of the manifest; empty if there is none."""
    why_no_reward: str = ""
    """Why the step has no mean reward although rewards were measured."""


def step_summary(run: Run, numbers: Mapping[str, Floats]) -> StepSummary:
    """Summarise a run. `numbers`: further numbers of its measured rollouts, in the same order, NaN where missing."""
    profile, found = run.profile, dict[str, Estimate]()
    if profile.solved is not None:
        found[SOLVE_RATE] = profile.solved.rate
    if profile.rewards is not None and not profile.rewards.why_no_mean:
        found[REWARD] = profile.rewards.mean
    columns = {name: getattr(run.columns, name) for name in LENGTHS}
    for name, values in {**columns, **numbers}.items():
        if (estimate := _estimate(run, name, values)) is not None:
            found[name] = estimate
    if profile.tasks is not None and (share := profile.tasks.zero_variance.share) is not None:
        found[ZERO_VARIANCE] = share
    sha = (profile.identity or {}).get("input_sha256")
    sides = {BY_CONTENT: side_by(BY_CONTENT, run)}
    if sides[BY_CONTENT] is None:  # the best key, so that the others would only need memory
        sides = {by: side_by(by, run) for by in (BY_PROMPT, SAME_INPUT)}
    return StepSummary(
        rollouts=len(run.columns),
        figures=found,
        varying=frozenset(name for name, values in numbers.items() if name in found and _varies(run, values)),
        sides={by: side for by, side in sides.items() if side is not None},
        input=sha if isinstance(sha, str) else "",
        why_no_reward=profile.rewards.why_no_mean if profile.rewards else "",
    )


def drawn_names(summaries: Mapping[int, StepSummary]) -> list[str]:
    """Return the figures worth a curve, in a fixed order: those that every report has, the parts of the reward, then
    other numbers of the verdict. Attributes of tasks, such as a seed, are no results: they are equal in all rollouts of
    a task, and their mean is equal in all steps.
    """
    known = dict.fromkeys(name for one in summaries.values() for name in one.figures)
    standard = [name for name in (SOLVE_RATE, REWARD, *LENGTHS, *_TOKENS, ZERO_VARIANCE) if name in known]
    parts = [name for name in known if name.startswith(f"{COMPONENTS}.")]
    varying = {name for one in summaries.values() for name in one.varying}
    same_tasks = len({one.input for one in summaries.values()}) == 1 and all(one.input for one in summaries.values())
    others = [name for name in known if name not in {*standard, *parts}]
    results = [name for name in others if name in varying or (same_tasks and _step_summary_changes(name, summaries))]
    return [*standard[:2], *parts, *standard[2:], *results]


def _step_summary_changes(name: str, summaries: Mapping[int, StepSummary]) -> bool:
    return len({one.figures[name].mean for one in summaries.values() if name in one.figures}) > 1


def _estimate(run: Run, name: str, values: Floats) -> Estimate | None:
    kept = ~np.isnan(values)
    if not kept.any():
        return None
    starts = np.flatnonzero(np.diff(run.columns.task[kept], prepend=-1))
    is_share = name == RARE_TOKENS or (name not in LENGTHS and bool(np.isin(values[kept], (0.0, 1.0)).all()))
    return clustered_mean(values[kept], starts, is_share=is_share)


def _varies(run: Run, values: Floats) -> bool:
    kept = ~np.isnan(values)
    same_task = np.diff(run.columns.task[kept]) == 0
    return bool((np.diff(values[kept])[same_task] != 0).any())


SORTS = ("task", "first", "last", "change", "learned")
_LEARNED = 0.5


@dataclass(frozen=True)
class TaskSeries:
    """The tasks of a series as arrays with a row per task and a column per step."""

    by: str
    """How tasks are paired, as in `task_pairing`; empty if they cannot be."""
    why_not: str
    task: Ints
    """Index of the task in the step's file; -1 if the step has no rollout of it."""
    measured: Ints
    mean: Floats
    solve_rate: Floats
    """NaN if "solved" is undefined in the step."""

    @classmethod
    def of(cls, steps: Sequence[StepSummary]) -> TaskSeries:
        """Pair the tasks of these steps by content; by index only if all manifests state the same input."""
        by = _common_key(steps)
        sides = [one.sides[by] for one in steps] if by else []
        keys: Ints = np.unique(np.concatenate([side.key for side in sides])) if sides else np.empty(0, np.int64)
        shape = len(keys), len(sides)
        task, measured = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
        mean, rate = np.full(shape, np.nan), np.full(shape, np.nan)
        for column, side in enumerate(sides):
            rows = np.searchsorted(keys, side.key)
            task[rows, column], measured[rows, column], mean[rows, column] = side.task, side.measured, side.mean
            if side.solve_rate is not None:
                rate[rows, column] = side.solve_rate
        return cls(by, "" if by else _why_no_key(steps), task, measured, mean, rate)

    def __len__(self) -> int:
        return len(self.task)

    @property
    def has_solved(self) -> bool:
        """Whether every step has solve rates, so that the steps can be compared by them."""
        return bool(len(self)) and bool((~np.isnan(self.solve_rate)).any(axis=0).all())

    @property
    def label(self) -> Ints:
        """Index of each task in the first step that has it."""
        if not self.task.size:
            return np.empty(0, np.int64)
        first: Ints = self.task[np.arange(len(self)), (self.task >= 0).argmax(axis=1)]
        return first

    def order(self, sort: str, values: Floats) -> Ints:
        """Return the rows by `sort`, one of SORTS, with `-` before it for descending order. Tasks without a value come
        last. `learned`: see `learned_at`.
        """
        name, direction = sort.removeprefix("-"), -1.0 if sort.startswith("-") else 1.0
        first, last = ends(values)
        known = {"task": self.label.astype(float), "first": first, "last": last, "change": last - first}
        chosen = learned_at(values) if name == "learned" else known[name]
        return np.lexsort((self.label, direction * (last - first), direction * chosen))


def ends(values: Floats) -> tuple[Floats, Floats]:
    """Return the first and the last known value of each row. The last one is NaN if they are the same value."""
    rows, known = np.arange(len(values)), ~np.isnan(values)
    if not values.size:
        return np.full(len(values), np.nan), np.full(len(values), np.nan)
    start, stop = known.argmax(axis=1), values.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    first, last = values[rows, start], values[rows, stop]
    return first, np.where(start < stop, last, np.nan)


def learned_at(values: Floats) -> Floats:
    """Return the column from which on all known values of a row are at least one half; NaN if there is none."""
    if not values.size:
        return np.full(len(values), np.nan)
    known = ~np.isnan(values)
    below: NDArray[np.bool_] = known & (values < _LEARNED)
    columns = values.shape[1]
    after = np.where(below.any(axis=1), columns - below[:, ::-1].argmax(axis=1), 0)
    candidates = known & (np.arange(columns) >= after[:, None])
    return np.where(candidates.any(axis=1), candidates.argmax(axis=1), np.nan)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indexes below `count`, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _common_key(steps: Sequence[StepSummary]) -> str:
    shared = set.intersection(*(set(one.sides) for one in steps)) if steps else set[str]()
    if not steps or not steps[0].input or len({one.input for one in steps}) > 1:
        shared.discard(SAME_INPUT)
    return next((by for by in (BY_CONTENT, SAME_INPUT, BY_PROMPT) if by in shared), "")


def _why_no_key(steps: Sequence[StepSummary]) -> str:
    keyed = sum(BY_CONTENT in one.sides for one in steps)
    if keyed:
        return f"{len(steps) - keyed} of the {len(steps)} steps have rows without _ng_task_key, which the others have"
    return "the rows do not identify their tasks: some lack _ng_task_key, and prompts are not unique"


MAX_COLUMNS = 40
MAX_TASKS = 30
"""Maximum number of tasks with the largest gains, and of those with the largest losses."""


@dataclass(frozen=True)
class SummarizedStep:
    step: int
    name: str
    path: str
    summary: StepSummary | None
    """None if the file has no measured rollout."""


class StepFigures(Record):
    step: int
    name: str
    path: str
    rollouts: int
    figures: dict[str, Estimate]


class TaskResults(Record):
    task: int
    """Index of the task in the first step that has it."""
    values: list[float | None]
    change: float
    """The last known value minus the first."""


class StepChanges(Record):
    why_not: str
    """Why the steps cannot be compared; empty if they can."""
    by: str
    metric: str
    difference: PairedDifference | None
    learned: int
    forgotten: int
    most_learned: list[TaskChange]
    most_forgotten: list[TaskChange]


class SeriesProfile(Record):
    """Files as the steps of a training run, in ascending order."""

    steps: list[StepFigures]
    figures: list[str]
    """The names of the figures that are worth a curve, most important first."""
    columns: list[int]
    """The steps for which the results of tasks are given: all, or 40 evenly spaced ones."""
    value: str
    """What the results of tasks are: `solve_rate` or `reward`."""
    paired_by: str
    why_not_paired: str
    tasks: int
    gains: list[TaskResults]
    """Largest first."""
    losses: list[TaskResults]
    changes: StepChanges
    notes: list[str]


def series_profile(steps: Sequence[SummarizedStep], first: Run, last: Run, notes: Sequence[str] = ()) -> SeriesProfile:
    """Return the profile of steps in ascending order. `first` and `last`: the runs of the first and the last step."""
    summaries = {one.step: one.summary for one in steps if one.summary is not None}
    known = sorted(summaries)
    columns = [known[at] for at in evenly(len(known), MAX_COLUMNS)]
    series = TaskSeries.of([summaries[step] for step in columns])
    values = series.solve_rate if series.has_solved else series.mean
    before, after = ends(values)
    change = after - before

    def results(sign: float) -> list[TaskResults]:
        order = np.lexsort((series.label, -sign * change))
        return [
            TaskResults(
                task=int(series.label[row]),
                values=[None if np.isnan(value) else float(value) for value in values[row]],
                change=float(change[row]),
            )
            for row in [row for row in order.tolist() if sign * change[row] > 0][:MAX_TASKS]
        ]

    changes = TaskChanges.of(first, last)
    learned, forgotten = changes.listed("learned"), changes.listed("forgotten")
    return SeriesProfile(
        steps=[
            StepFigures(
                step=one.step,
                name=displayable(one.name),
                path=one.path,
                rollouts=one.summary.rollouts if one.summary else 0,
                figures=one.summary.figures if one.summary else {},
            )
            for one in steps
        ],
        figures=drawn_names(summaries),
        columns=columns,
        value=SOLVE_RATE if series.has_solved else REWARD,
        paired_by=series.by,
        why_not_paired=series.why_not,
        tasks=len(series),
        gains=results(1.0),
        losses=results(-1.0),
        changes=StepChanges(
            why_not=changes.why_not,
            by=changes.by,
            metric=changes.metric,
            difference=changes.difference,
            learned=len(learned),
            forgotten=len(forgotten),
            most_learned=[changes.at(index) for index in learned[:MAX_TASKS].tolist()],
            most_forgotten=[changes.at(index) for index in forgotten[:MAX_TASKS].tolist()],
        ),
        notes=[*notes, *dict.fromkeys(one.why_no_reward for one in summaries.values() if one.why_no_reward)],
    )
