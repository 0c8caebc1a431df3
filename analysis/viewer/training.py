"""A training run: its metrics as charts, its steps, and the rollouts of the steps that were looked at.

`TrainingIndex` has the run's files, which `TrainingFolder` lists as `ng_train` writes them
(training/run_folder.py).
"""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import orjson
from fastapi import APIRouter, Query
from fastapi.responses import Response

from rollyard.analysis.charts.curves import ChartGroup, axis_of, title_of, training_charts, value_text
from rollyard.analysis.metrics.columns import displayable
from rollyard.analysis.metrics.training_steps import MetricsFile
from rollyard.analysis.viewer.api_records import Overview, TrainingStatus
from rollyard.analysis.viewer.caches import ThrottledCache
from rollyard.analysis.viewer.library import FileIndex, UnknownRun
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.records.rollout_file import read_status
from rollyard.records.types import Json, Record, is_number, items, mapping, text_of

MAX_LINES = 500
_COLUMNS = (
    *("train/reward", "train/correct_rate", "train/avg_completion_length", "train/entropy"),
    *("train/zero_variance_rate", "train/failed_rollouts", "perf/step_s"),
)
_EVALUATIONS = (("eval/correct_rate", "eval/success_rate", "eval/accuracy"), ("eval/reward", "eval/mean_reward"))
"""The first known metric of each is a column."""
_STEP_FILE = re.compile(r"step_(\d{6,})(\.jsonl?)")
_TIMES = ("created", "time", "ended")
_MAX_TIME = 1e10
_MAX_FACTS = 40
_MAX_FACT_LENGTH = 300


class TrainingCharts(Record):
    """GET /api/training/charts: all metrics as charts over the same steps."""

    revision: int
    """The revision of the metrics that are drawn, which may be slightly older than the latest."""
    first: int
    last: int
    groups: list[ChartGroup]
    zero: list[str]
    """Metrics without a chart, because they are 0 in every step."""


class StepLine(Record):
    step: int
    cells: list[str]
    """A value per column, empty if the step has none."""
    rollouts: int | None
    evaluation: int | None


class StepPage(Record):
    """GET /api/training/steps?start=&limit=: a page of the table of steps."""

    columns: list[str]
    total: int
    start: int
    lines: list[StepLine]


def training_router(index: TrainingIndex) -> APIRouter:
    router = APIRouter(prefix="/api/training")
    drawn = ThrottledCache[TrainingCharts]()

    def current_charts() -> TrainingCharts:
        with index.reading:
            revision, curves, steps = index.metrics.revision, index.metrics.curves(), index.metrics.steps

        def draw() -> TrainingCharts:
            groups, zero = training_charts(curves)
            shown = [displayable(name) for name in zero]
            first, last = (steps[0], steps[-1]) if steps else (0, 0)
            return TrainingCharts(revision=revision, first=first, last=last, groups=groups, zero=shown)

        return drawn.get(revision, draw)

    @router.get("/charts")
    async def charts() -> Response:
        return await json_response(current_charts)

    @router.get("/steps")
    async def steps(
        start: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100
    ) -> Response:
        return await json_response(lambda: step_page(index, start, limit))

    return router


def step_page(index: TrainingIndex, start: int, limit: int) -> StepPage:
    """Return a page of steps: those with metrics and those with rollouts."""
    rollouts, evaluations = index.folder.rollouts(), index.folder.evaluations()
    with index.reading:
        names = index.metrics.names
        evaluated = [next((name for name in known if name in names), None) for known in _EVALUATIONS]
        columns = [name for name in (*_COLUMNS, *evaluated) if name is not None and name in names]
        steps = sorted({*index.metrics.steps, *rollouts, *evaluations}, reverse=True)
        chosen = [(step, index.metrics.at(step)) for step in steps[start : start + limit]]
    return StepPage(
        columns=[title_of(name) for name in columns],
        total=len(steps),
        start=start,
        lines=[
            StepLine(
                step=step,
                cells=[value_text(values[name], axis_of(name)) if name in values else "" for name in columns],
                rollouts=rollouts_number(step) if step in rollouts else None,
                evaluation=evaluation_number(step) if step in evaluations else None,
            )
            for step, values in chosen
        ],
    )


class TrainingIndex(FileIndex):
    """A run has as many files as steps, so that they are opened only when they are looked at.

    Numbers of runs follow from steps (`rollouts_number`, `evaluation_number`), which makes addresses permanent.
    """

    def __init__(self, root: Path, *, version: str = "", threshold: float | None = None, workers: int | None = None):
        super().__init__([], version=version, threshold=threshold, workers=workers)
        self.folder = TrainingFolder(root)
        self.metrics = MetricsFile(self.folder.metrics)
        self.reading = threading.Lock()
        """Held while `metrics` changes or is read."""
        self._opening = threading.Lock()

    def find(self, number: int) -> RunFile:
        with self._opening:
            if (run := self._runs.get(number)) is not None:
                return run
            step, is_evaluation = divmod(number, 2)
            path = (self.folder.evaluations() if is_evaluation else self.folder.rollouts()).get(step)
            if path is None:
                kind = "evaluation" if is_evaluation else "rollout"
                raise UnknownRun(f"the training run has no {kind} file of step {step}")
            run = self._opened(number, f"evaluation after step {step}" if is_evaluation else f"step {step}", path)
            run.advance()  # a first part, so that the page has something to show
            self._runs[number] = run
            return run

    def overview(self, wanted: Sequence[int] = ()) -> Overview:
        """Return the state of the training run and of the opened files. Those in `wanted` are opened if they exist."""
        for number in wanted:
            try:
                self.find(number)
            except UnknownRun:
                continue
        status = self._status()
        return super().overview().model_copy(update={"title": status.name, "training": status})

    def _status(self) -> TrainingStatus:
        rollouts, evaluations = self.folder.rollouts(), self.folder.evaluations()
        record = self.folder.record()
        last_start = mapping((items(record.get("starts")) or [None])[-1])
        with self.reading:
            steps = self.metrics.steps
            revision, updated = self.metrics.revision, self.metrics.updated
        return TrainingStatus(
            name=displayable(self.folder.root.resolve().name),
            path=displayable(str(self.folder.root), 4096),
            state=displayable(text_of(last_start.get("state"))),
            facts=facts_of(record, last_start),
            revision=revision,
            steps=len(steps),
            last_step=steps[-1] if steps else None,
            updated=updated,
            rollouts=list(rollouts),
            evaluations=list(evaluations),
            token_pairs=bool(self.folder.token_pairs()),
            collecting=read_status(list(rollouts.values())[-1]) if rollouts else None,
        )

    def _advance(self, pool: ProcessPoolExecutor | None) -> bool:
        with self.reading:
            self.metrics.advance()
        return super()._advance(pool)


def rollouts_number(step: int) -> int:
    return 2 * step


def evaluation_number(step: int) -> int:
    return 2 * step + 1


class TrainingFolder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.metrics = root / "metrics.jsonl"

    @property
    def is_training_run(self) -> bool:
        has_files = self.metrics.is_file() or self.rollouts() or self.evaluations()
        return bool(has_files or "starts" in self.record())

    def rollouts(self) -> dict[int, Path]:
        return _step_files(self.root / "rollouts")

    def evaluations(self) -> dict[int, Path]:
        """Return the rollout file of each evaluation by the number of updates before it, in ascending order."""
        return _step_files(self.root / "evaluations")

    def token_pairs(self) -> dict[int, Path]:
        return _step_files(self.root / "token_pairs", ".json")

    def record(self) -> Json:
        """Return the contents of run.json; empty if there is no such file, or while it is being written."""
        try:
            record = orjson.loads((self.root / "run.json").read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return {}
        return mapping(record)


def facts_of(record: Json, last_start: Json) -> dict[str, str]:
    starts = items(record.get("starts"))
    plain = {name: value for name, value in record.items() if name != "starts"}
    found = {**_flat(plain), **({"starts": str(len(starts))} if starts else {}), **_flat(last_start)}
    return dict(list(found.items())[:_MAX_FACTS])


def _flat(tree: Json, prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in tree.items():
        shown = displayable(prefix + name)
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name} ")
        elif name in _TIMES and is_number(value, _MAX_TIME):
            found[shown] = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(value))
        else:
            found[shown] = displayable(_text(value), _MAX_FACT_LENGTH)
    return found


def _text(value: object) -> str:
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return shlex.join(value)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _step_files(folder: Path, suffix: str = ".jsonl") -> dict[int, Path]:
    try:
        paths = list(folder.iterdir())
    except OSError:
        return {}
    steps = ((_STEP_FILE.fullmatch(path.name), path) for path in paths)
    return dict(sorted((int(found[1]), path) for found, path in steps if found and found[2] == suffix))
