"""Serves the tokens whose frequency differs most between two runs."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.services.metrics.tokens.changed_tokens import changed_tokens
from rollyard.services.metrics.tokens.token_tally import TokenTally
from rollyard.services.types import Record
from rollyard.services.viewer.library import FileIndex
from rollyard.services.viewer.token_texts import TokenDecoder
from rollyard.services.viewer.tokens.token_groups import token_groups
from rollyard.services.viewer.tokens.token_index import Counted, TokenIndex
from rollyard.services.viewer.tokens.token_records import TokenGroup

_LISTED = 50


class ChangedToken(Record):
    """A token in the first and in the second run."""

    groups: tuple[TokenGroup | None, TokenGroup | None]
    """None in a run in which it does not occur."""
    log_odds: float
    """Natural logarithm of the ratio of the odds, second to first, shrunk by the prior."""
    z: float


class TokenChanges(Record):
    """GET /api/tokens/changes?first=&second=: the tokens of two runs. The page polls it until `examined` is 1."""

    examined: float
    error: str
    sampled: bool
    tokens: tuple[int, int]
    why_not: str
    """Why the tokens cannot be compared; empty if they can."""
    more: list[ChangedToken]
    """Tokens that are more frequent in the second run, most remarkable first."""
    fewer: list[ChangedToken]


def change_router(file_index: FileIndex, tokens: TokenIndex, decoder: TokenDecoder | None = None) -> APIRouter:
    """Build the route."""
    api = APIRouter(prefix="/api/tokens")

    def view(runs: tuple[int, int]) -> str:
        counted = [tokens.counted(run) for run in runs]
        return _changes(file_index, runs, counted, decoder).model_dump_json()

    @api.get("/changes")
    async def changes(first: int, second: int) -> Response:
        body = await run_in_threadpool(lambda: view((first, second)))
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})

    return api


def _changes(
    file_index: FileIndex, runs: tuple[int, int], counted: Sequence[Counted], decoder: TokenDecoder | None
) -> TokenChanges:
    tallies = first, second = counted[0].tally, counted[1].tally
    why_not = _why_not(file_index, runs, tallies)
    found = changed_tokens(first, second)
    tables = [file_index.find(run).table for run in runs]

    def sides_of(chosen: Sequence[int], side: int) -> dict[int, TokenGroup]:
        occurring = [place for place in chosen if found.index[side][place] >= 0]
        return dict(
            zip(
                occurring, token_groups(tallies[side], found.index[side][occurring], tables[side], decoder), strict=True
            )
        )

    def records(more: bool) -> list[ChangedToken]:
        chosen = [] if why_not else found.most(more=more, limit=_LISTED)
        sides = sides_of(chosen, 0), sides_of(chosen, 1)
        return [
            ChangedToken(
                groups=(sides[0].get(place), sides[1].get(place)),
                log_odds=float(found.log_odds[place]),
                z=float(found.z[place]),
            )
            for place in chosen
        ]

    return TokenChanges(
        examined=min(one.examined for one in counted),
        error=" ".join(filter(None, (one.error for one in counted))),
        sampled=any(one.sampled for one in counted),
        tokens=(first.tokens, second.tokens),
        why_not=why_not,
        more=records(True),
        fewer=records(False),
    )


def _why_not(file_index: FileIndex, runs: tuple[int, int], tallies: tuple[TokenTally, TokenTally]) -> str:
    """Return why the tallies cannot be compared."""
    for run, tally in zip(runs, tallies, strict=True):
        if not tally.tokens:
            return f"{file_index.find(run).name} has no log-probabilities of generated tokens."
    by_id = [tally.without_texts == tally.tokens for tally in tallies]
    if by_id[0] != by_id[1]:
        return "Only one of the runs has the texts of its tokens; the other has ids."
    return ""
