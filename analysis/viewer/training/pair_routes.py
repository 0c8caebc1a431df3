"""Serves the differences between the log-probabilities of engine and trainer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.charts.chart import Chart
from rollyard.analysis.viewer.api.rollout_view import RowChanged, row_of
from rollyard.analysis.viewer.api.untrusted_values import sanitize
from rollyard.analysis.viewer.index.library import UnknownRun
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.analysis.viewer.tokens.decoder import TokenDecoder
from rollyard.analysis.viewer.tokens.token_place import TokenPlace, token_place
from rollyard.analysis.viewer.training.pair_charts import pair_charts
from rollyard.analysis.viewer.training.pair_file import NO_PAIRS, PairFile, TokenPair, read_pairs
from rollyard.analysis.viewer.training.training_index import TrainingIndex, rollouts_number
from rollyard.records.errors import RunError
from rollyard.records.types import Record


class LargeDifference(Record):
    """A token on which engine and trainer differ."""

    run: int
    """Number of the step's rollout file."""
    task: int
    repeat: int
    id: int
    engine: float
    trainer: float
    entropy: float | None
    clipped: bool
    call: int | None
    """Index of the model call; None if the row does not contain the token, or has not been read."""
    position: int | None
    text: str
    """Empty if texts are not recorded."""
    before: str
    after: str


class Mismatch(Record):
    """GET /api/training/mismatch?step=: engine and trainer before an update. Without `step`, that of the last one."""

    steps: list[int]
    """Steps with a file of pairs, in ascending order."""
    step: int | None
    """None if there are none."""
    tokens: int
    """Number of tokens with a loss in the update."""
    clipped: int
    charts: list[Chart]
    largest: list[LargeDifference]
    not_finite: int
    """Number of recorded tokens that are left out because the log-probability of engine or trainer is not a number."""
    problem: str
    """Why the step's file cannot be read, in one sentence; empty if it can."""
    pending: bool
    """Whether the rollout file is still being read, so that tokens may lack their places."""


def pair_router(index: TrainingIndex, decoder: TokenDecoder | None = None) -> APIRouter:
    """Build the route."""
    router = APIRouter(prefix="/api/training")

    @router.get("/mismatch")
    async def mismatch(step: Annotated[int | None, Query(ge=0)] = None) -> Response:
        body = await run_in_threadpool(lambda: _mismatch(index, step, decoder).model_dump_json())
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return router


def _mismatch(index: TrainingIndex, step: int | None, decoder: TokenDecoder | None) -> Mismatch:
    files = index.folder.token_pairs()
    if not files and step is None:
        return _view([], None, NO_PAIRS, [])
    chosen = max(files) if step is None else step
    if chosen not in files:
        raise HTTPException(404, f"step {chosen} has no file of log-probabilities; {len(files)} other steps have one")
    try:
        found = read_pairs(files[chosen])
    except RunError as error:  # the page still offers the other steps
        return _view(list(files), chosen, NO_PAIRS, [], problem=sanitize(str(error)))
    try:
        run: RunFile | None = index.find(rollouts_number(chosen))
    except UnknownRun:
        run = None
    largest = [_large(pair, rollouts_number(chosen), run, decoder) for pair in found.largest]
    return _view(list(files), chosen, found, largest, pending=run is not None and run.unread_bytes > 0)


def _view(
    steps: list[int],
    step: int | None,
    found: PairFile,
    largest: list[LargeDifference],
    *,
    problem: str = "",
    pending: bool = False,
) -> Mismatch:
    return Mismatch(
        steps=steps,
        step=step,
        tokens=found.tokens,
        clipped=found.clipped,
        charts=pair_charts(found),
        largest=largest,
        not_finite=found.not_finite,
        problem=problem,
        pending=pending,
    )


def _large(pair: TokenPair, number: int, run: RunFile | None, decoder: TokenDecoder | None) -> LargeDifference:
    place = _place(pair, run, decoder)
    return LargeDifference(
        run=number,
        task=pair.task,
        repeat=pair.repeat,
        id=pair.id,
        engine=pair.engine,
        trainer=pair.trainer,
        entropy=pair.entropy,
        clipped=pair.clipped,
        call=place.call if place else None,
        position=place.position if place else None,
        text=sanitize(place.text) if place else "",
        before=sanitize(place.before) if place else "",
        after=sanitize(place.after) if place else "",
    )


def _place(pair: TokenPair, run: RunFile | None, decoder: TokenDecoder | None) -> TokenPlace | None:
    if run is None:
        return None
    table = run.table
    if (at := table.find(pair.task, pair.repeat)) is None:
        return None
    try:
        row = row_of(run, table, at)
    except (OSError, RowChanged):
        return None
    return token_place(row, pair.index, pair.id, pair.engine, decoder) if row else None
