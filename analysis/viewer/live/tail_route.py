"""Serves an episode while it is played: GET /api/live/episodes/{agent}/{episode}."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response

from rollyard.analysis.viewer.live.episode_tails import EpisodeTails

_NO_STORE = {"cache-control": "no-store"}


def tail_router(tails: EpisodeTails) -> APIRouter:
    """Build the route."""
    router = APIRouter()

    @router.get("/api/live/episodes/{agent}/{episode}", summary="An episode that is being played")
    async def tail(
        agent: Annotated[str, Path(max_length=200)],
        episode: Annotated[str, Path(max_length=200)],
        have: Annotated[int, Query(ge=-1)] = -1,
    ) -> Response:
        view = await tails.view(agent, episode, have)
        return Response(view.model_dump_json(), media_type="application/json", headers=_NO_STORE)

    return router
