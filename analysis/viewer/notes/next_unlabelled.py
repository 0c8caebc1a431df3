"""Finds the next rollout of a list that an author has neither labelled nor judged."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from rollyard.analysis.viewer.api.rollout_list import Query
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.records.types import Record


class NextQuery(Query):
    """Query parameters of GET /api/runs/{run}/notes/next: the present rollout, and those of the list."""

    author: str = Field(default="", max_length=80)
    """Whose labels and verdicts count; empty: those of the user who started the viewer."""
    after_task: int | None = None
    after_repeat: int | None = None
    after: int | None = None
    """Place of the present rollout in the list, which counts if its labels have removed it from the list."""


class ListPlace(Record):
    task: int
    repeat: int
    at: int
    """Index in the list."""


class NextUnlabelled(Record):
    """GET /api/runs/{run}/notes/next."""

    next: ListPlace | None
    """None if the author has labelled all rollouts of the list."""
    left: int
    """Number of rollouts of the list that the author has not labelled."""
    total: int


def next_unlabelled(run: RunFile, query: NextQuery, author: str) -> NextUnlabelled:
    """Return the next rollout; after the end of the list, the search continues at its start.

    Rollouts without a row are left out, because nothing can be noted about them. Raises ExpressionError.
    """
    listing, indexes, _ = run.select(query)
    table = listing.table
    by_offset = run.notes.current().by_offset
    labelled = [
        offset for offset, notes in by_offset.items() if author in (*(name for _, name in notes.added), *notes.judged)
    ]
    offsets = table.offset[indexes]
    open_places = np.flatnonzero((offsets >= 0) & ~np.isin(offsets, labelled))
    left, total = len(open_places), int((offsets >= 0).sum())
    if not left:
        return NextUnlabelled(next=None, left=0, total=total)
    same = (table.task[indexes] == query.after_task) & (table.repeat[indexes] == query.after_repeat)
    here = np.flatnonzero(same)
    # A rollout that is no longer in the list has given its place to the one after it.
    first = int(here[0]) + 1 if len(here) else query.after or 0
    later = open_places[open_places >= first]
    at = int(later[0] if len(later) else open_places[0])
    index = indexes[at]
    place = ListPlace(task=int(table.task[index]), repeat=int(table.repeat[index]), at=at)
    return NextUnlabelled(next=place, left=left, total=total)
