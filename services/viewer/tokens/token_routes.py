"""Serves the tokens of a run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.services.metrics.tokens.place_figures import figures_at
from rollyard.services.metrics.tokens.token_tally import Place
from rollyard.services.viewer.library import FileIndex
from rollyard.services.viewer.rollout_list import Table
from rollyard.services.viewer.token_texts import TokenDecoder
from rollyard.services.viewer.tokens.token_charts import token_charts
from rollyard.services.viewer.tokens.token_groups import default_least, ordered, token_groups
from rollyard.services.viewer.tokens.token_index import Counted, TokenIndex
from rollyard.services.viewer.tokens.token_records import Sort, TokensView

MAX_LINES = 500


def token_router(file_index: FileIndex, tokens: TokenIndex, decoder: TokenDecoder | None = None) -> APIRouter:
    """Build the routes. `decoder` gives tokens their texts if only ids are recorded."""
    api = APIRouter(prefix="/api/runs/{run}/tokens")

    @api.get("")
    async def of_run(
        run: int,
        sort: Sort = "surprisal",
        least: Annotated[int, Query(ge=0, le=2**53)] = 0,
        q: Annotated[str, Query(max_length=200)] = "",
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 50,
    ) -> Response:
        def view() -> str:
            counted = tokens.counted(run)
            table = file_index.find(run).table
            return tokens_view(counted, table, sort, least, q, start, limit, decoder).model_dump_json()

        body = await run_in_threadpool(view)
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return api


def tokens_view(
    counted: Counted,
    table: Table,
    sort: Sort = "surprisal",
    least: int = 0,
    query: str = "",
    start: int = 0,
    limit: int = MAX_LINES,
    decoder: TokenDecoder | None = None,
) -> TokensView:
    """Return the response. `least` 0: the default for this number of tokens."""
    tally = counted.tally
    least = least or default_least(tally)
    indexes = ordered(tally, sort, least, query, decoder)
    whole = next(iter(figures_at(tally, Place.ALL)), None)
    return TokensView(
        examined=counted.examined,
        error=counted.error,
        sampled=counted.sampled,
        rows=tally.rows,
        with_tokens=tally.with_tokens,
        calls=tally.calls,
        tokens=tally.tokens,
        without_texts=tally.without_texts,
        left_out=tally.left_out,
        log_prob=whole.log_prob if whole else None,
        rare=whole.rare if whole else None,
        entropy=whole.entropy if whole else None,
        charts=token_charts(tally),
        sort=sort,
        least=least,
        total=len(indexes),
        start=start,
        groups=token_groups(tally, indexes[start : start + limit], table, decoder),
    )
