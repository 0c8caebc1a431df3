"""Serves the curves and the steps of a training run.

GET /api/training/charts returns its charts, and GET /api/training/steps a page of its steps, the last one first.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.charts.curves.catalog import axis_of, title_of
from rollyard.analysis.charts.curves.training_charts import ChartGroup, training_charts, value_text
from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.viewer.index.throttled_cache import ThrottledCache
from rollyard.analysis.viewer.training.training_index import TrainingIndex, evaluation_number, rollouts_number
from rollyard.records.types import Record

MAX_LINES = 500
_COLUMNS = (
    *("train/reward", "train/correct_rate", "train/avg_completion_length", "train/entropy"),
    *("train/zero_variance_rate", "train/failed_rollouts", "perf/step_s"),
)
_EVALUATIONS = (("eval/correct_rate", "eval/success_rate", "eval/accuracy"), ("eval/reward", "eval/mean_reward"))
"""The first known metric of each is a column."""


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
    """A step in the table."""

    step: int
    cells: list[str]
    """A value per column, empty if the step has none."""
    rollouts: int | None
    """Number of the run with the step's rollouts; None if there is no file."""
    evaluation: int | None
    """Number of the run with the rollouts of the evaluation after the step."""


class StepPage(Record):
    """GET /api/training/steps?start=&limit=: a page of the table of steps."""

    columns: list[str]
    total: int
    start: int
    lines: list[StepLine]


def training_router(index: TrainingIndex) -> APIRouter:
    """Build the routes."""
    router = APIRouter(prefix="/api/training")
    drawn = ThrottledCache[str]()

    def charts_json() -> str:
        with index.reading:
            revision, curves, steps = index.metrics.revision, index.metrics.curves(), index.metrics.steps

        def draw() -> str:
            groups, zero = training_charts(curves)
            shown = [displayable(name) for name in zero]
            first, last = (steps[0], steps[-1]) if steps else (0, 0)
            found = TrainingCharts(revision=revision, first=first, last=last, groups=groups, zero=shown)
            return found.model_dump_json()

        return drawn.get(revision, draw)

    @router.get("/charts")
    async def charts() -> Response:
        return _json(await run_in_threadpool(charts_json))

    @router.get("/steps")
    async def steps(
        start: Annotated[int, Query(ge=0)] = 0, limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100
    ) -> Response:
        page = await run_in_threadpool(lambda: step_page(index, start, limit))
        return _json(page.model_dump_json())

    return router


def step_page(index: TrainingIndex, start: int, limit: int) -> StepPage:
    """Return a page of steps: those with metrics and those with rollouts."""
    rollouts, evaluations = index.folder.rollouts(), index.folder.evaluations()
    with index.reading:
        columns = _columns(index.metrics.names)
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


def _columns(known: Collection[str]) -> list[str]:
    evaluations = [next((name for name in names if name in known), None) for names in _EVALUATIONS]
    return [*(name for name in _COLUMNS if name in known), *(name for name in evaluations if name is not None)]


def _json(body: str) -> Response:
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})
