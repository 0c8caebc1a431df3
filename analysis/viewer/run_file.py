"""A rollout file in the viewer, with its sidecar files: its list, its metrics, and the view of each rollout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import numpy as np
from fastapi import HTTPException

from rollyard.analysis.charts.charts import Chart
from rollyard.analysis.charts.run_charts import log_probs, profile_charts
from rollyard.analysis.metrics.columns import Columns, chosen, displayable
from rollyard.analysis.metrics.load import PART, Read, run_from_columns
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.solved import with_solved
from rollyard.analysis.viewer.api_records import ColumnHead, Event, Numbers, Page, RolloutView, RunFileStatus
from rollyard.analysis.viewer.caches import ThrottledCache
from rollyard.analysis.viewer.conversation import events_of
from rollyard.analysis.viewer.fields import Cells, FileFields, verdict_of
from rollyard.analysis.viewer.findings import ReadSoFar, RunFindings, rows_of
from rollyard.analysis.viewer.growing_index import AttemptFile, Failed, FollowedFile, Snapshot
from rollyard.analysis.viewer.rollout_list import (
    NO_ROW,
    SORTS,
    Indexes,
    Listing,
    Query,
    RolloutTable,
    page_start,
    table_of,
)
from rollyard.analysis.viewer.run_notes import RunNotes
from rollyard.analysis.viewer.text_search import SearchCache, Snippets
from rollyard.analysis.viewer.untrusted_values import as_row, row_facts
from rollyard.records.errors import RunError
from rollyard.records.jsonl import line_at
from rollyard.records.replay import Replay
from rollyard.records.rollout_file import RolloutPaths, is_running, read_status
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import CollectionStatus, Json

_SILENT_S = 60.0
"""A collection whose status has not been updated for this long is considered stopped."""
_SEARCH_WAIT_S = 0.2


class RunFile:
    """A rollout file in the viewer. One thread calls `advance`; any thread may query it."""

    def __init__(
        self, number: int, path: Path, name: str, *, threshold: float | None = None, workers: int = 1, part: int = PART
    ) -> None:
        """Rewards of at least `threshold` count as solved; None: what the environment says, or the range of rewards."""
        self.number, self.name, self.path, self.threshold = number, name, path, threshold
        self.file = FollowedFile(path, part=part)
        self.attempts = AttemptFile(RolloutPaths(path).failures)
        self.status: CollectionStatus | None = None
        self.listing = self._list(None)
        self.notes = RunNotes(path, lambda: (self.file.generation, self.listing.columns))
        self.fields = FileFields(path, self.notes)
        self.findings = RunFindings(path, self._read_so_far, self._numbers_before, workers=workers)
        self.listed = 0
        """Number of bytes of the file whose rollouts are listed."""
        self._searches = SearchCache(path)
        self._snippets = Snippets(path)
        self._generation = 0
        self._running_since: float | None = None
        self._numbers = ThrottledCache[tuple[int, Run]]()

    @property
    def table(self) -> RolloutTable:
        return self.listing.table

    @property
    def unread_bytes(self) -> int:
        return self.file.unread_bytes + self.attempts.unread_bytes

    def advance(self, pool: ProcessPoolExecutor | None = None) -> None:
        self.status = read_status(self.path)
        # Failed rollouts may be retried while a collection is running.
        since = self.status.started if self.status and is_running(self.status, _SILENT_S) else None
        read = self.file.advance(pool)
        failed = self.attempts.advance()
        if self.file.generation != self._generation:
            self._generation = self.file.generation
            self._searches.stop()
            self._snippets.clear()
            self.fields.stop()
        if read or failed or since != self._running_since:
            self._running_since = since
            self.listing = self._list(since)
            self.listed = self.file.snapshot.end
            self.fields.forget()

    def _list(self, since: float | None) -> Listing:
        columns = self.file.snapshot.columns
        table = table_of(columns, _final_attempts(self.attempts.failed, since), self.threshold)
        return Listing(table, with_solved(columns, self.threshold))

    def status_record(self) -> RunFileStatus:
        file, snapshot, measured = self.file, self.file.snapshot, self.table.measured
        return RunFileStatus(
            run=self.number,
            name=displayable(self.name),
            path=displayable(str(self.path), 4096),
            absolute_path=displayable(str(self.path.absolute()), 4096),
            size=file.size,
            indexed=self.listed,
            measured=int(measured.sum()),
            failed=int(len(measured) - measured.sum()),
            torn=self._torn(),
            error=" ".join(filter(None, [file.error, snapshot.error])),
            status=self.status,
        )

    def page(self, query: Query) -> Page:
        """Return a page of the list, the last one if `query.start` lies past the end. While the file is searched, it
        contains only rollouts found so far.

        Raises ExpressionError if the query's expression, sort key or columns are invalid, and OSError if the file
        cannot be read.
        """
        listing, indexes, searched = self.select(query)
        start = page_start(query.start, query.limit, len(indexes), searched)
        shown = indexes[start : start + query.limit]
        page = listing.page_of(shown, len(indexes), start, searched)
        columns, cells = self.cells(listing, shown, query.columns)
        snippets = self._snippets.of(listing.table.offset[shown].tolist(), query.q)
        found = self.findings.named(query.finding)[0] if query.finding else None
        more = {"columns": columns, "cells": cells, "snippets": snippets, "finding": found and found.finding}
        return page.model_copy(update=more)

    def select(self, query: Query) -> tuple[Listing, Indexes, float]:
        """Return the list, the indexes of the rollouts that the query selects, and the share of the file that has been
        searched for them. Raises ExpressionError, and HTTPException (404) if there is no such finding.
        """
        listing, searched, found = self.listing, 1.0, None
        if query.q:
            found, searched = self._searches.of(query.q).progress(self.file.snapshot.end, _SEARCH_WAIT_S)
        name = query.sort.removeprefix("-")
        field = "" if name in SORTS else name
        measured = listing.table.measured
        chosen = self.fields.values.select(listing.columns, measured, self.listed, query.where, field)
        indexes, searched = listing.select(query, found, chosen), min(searched, chosen.searched)
        if query.finding:
            finding, examined = self.findings.named(query.finding)
            indexes = indexes[np.isin(indexes, [] if finding is None else rows_of(listing.table, finding))]
            searched = min(searched, examined)
        return listing, indexes, searched

    def cells(self, listing: Listing, indexes: Indexes, names: str) -> tuple[tuple[ColumnHead, ...], Cells]:
        """Return the named columns, and their values in the rollouts at `indexes`. Raises as `page` does."""
        offsets, places = listing.table.offset[indexes], listing.places[indexes]
        return self.fields.cells(listing.columns, offsets.tolist(), places.tolist(), names)

    def numbers(self) -> tuple[int, Run]:
        """Return the metrics, preceded by the number of bytes they cover. They may be slightly stale."""
        version = self.file.generation, self.file.snapshot.end, len(self.attempts.failed.task)
        return self._numbers.get(version, self._compute_numbers)

    def _numbers_before(self, end: int) -> Run:
        covered, run = self.numbers()
        if covered == end:
            return run
        snapshot = self.file.snapshot
        return self._run(snapshot, chosen(snapshot.columns, snapshot.columns.offset < end))

    def close(self) -> None:
        self.findings.close()
        self._searches.stop()
        self.fields.stop()
        self.file.close()

    def _compute_numbers(self) -> tuple[int, Run]:
        snapshot = self.file.snapshot
        return snapshot.end, self._run(snapshot, snapshot.columns)

    def _run(self, snapshot: Snapshot, columns: Columns) -> Run:
        read = Read(columns, self.file.size, self._torn(), snapshot.has_task_index)
        return run_from_columns(self.path, self.name, read, pass_threshold=self.threshold)

    def _read_so_far(self) -> ReadSoFar:
        file, attempts = self.file, len(self.attempts.failed.task)
        return ReadSoFar(file.generation, file.snapshot.end, file.size - self._torn(), attempts)

    def _torn(self) -> int:
        return max(self.file.size - self.file.reached, 0) if self.file.at_end else 0


def _final_attempts(failed: Failed, since: float | None) -> Failed:
    """Return the attempts after which the rollout is not retried. `since`: the start of the running collection."""
    if since is None:
        return failed
    # What an earlier command abandoned is tried again. Files without `abandoned` only know terminal failures.
    return failed.take(failed.terminal | (failed.abandoned_at >= since))


def numbers_of(run: RunFile) -> Numbers:
    end, found = run.numbers()
    return Numbers(indexed=end, profile=found.profile, charts=profile_charts(found.profile, RunLinks(run.number)))


class RunLinks:
    """The URLs of one run's pages. Implements `rollyard.analysis.charts.svg.Links`."""

    def __init__(self, run: int) -> None:
        self._run = f"#/runs/{run}"

    def rollouts(self, **filters: str | float) -> str:
        encoded = {name: value if isinstance(value, str) else f"{value:.12g}" for name, value in filters.items()}
        return f"{self._run}?{urlencode(encoded)}"

    def task(self, task: int) -> str:
        return self.rollouts(task=task)


Replays = Callable[[Json], Replay | None]


class RowChanged(RunError):
    """The file was changed, so the index pointed to a different row. The file is being read again."""


def index_of(table: RolloutTable, task: int, repeat: int) -> int:
    """Return the index of a rollout in the table. Raises HTTPException (404) if it is not there."""
    index = table.find(task, repeat)
    if index is None:
        raise HTTPException(404, f"task {task}, repeat {repeat} is not in the part of the file read so far")
    return index


def rollout_view(run: RunFile, table: RolloutTable, index: int, replays: Replays) -> RolloutView:
    """Return the rollout at `index` of the run's table.

    Raises OSError if the file cannot be read, and RowChanged if the index is out of date.
    """
    line, row = table.line(index), row_of(run, table, index)
    events = events_of(row) if row else []
    return RolloutView(
        run=run.number,
        line=line,
        events=events,
        replay=replays(dict(row)) if row else None,
        charts=token_charts(events),
        verdict=tuple(verdict_of(row)) if row else (),
        facts=row_facts(row) if row else {},
        attempts=run.attempts.of(line.task, line.repeat),
        previous=_key(table, index - 1),
        next=_key(table, index + 1),
    )


def token_charts(events: Sequence[Event]) -> list[Chart]:
    chart = log_probs([log_prob for event in events if event.tokens for log_prob in event.tokens.log_probs])
    return [] if chart is None else [chart]


def row_line(run: RunFile, table: RolloutTable, index: int) -> tuple[bytes, RolloutRow | None]:
    """Return the line of the rollout at `index` and its row; nothing if it has none. Raises OSError or RowChanged, as
    `rollout_view` does.
    """
    offset = int(table.offset[index])
    if offset == NO_ROW:
        return b"", None
    line = line_at(run.path, offset).rstrip(b"\r\n")
    row, key = as_row(line), (int(table.task[index]), int(table.repeat[index]))
    found = None if row is None else (row.get("_ng_task_index"), row.get("_ng_rollout_index"))
    if row is None or (run.file.snapshot.has_task_index and found != key):
        run.file.invalidate()
        raise RowChanged(f"the row of task {key[0]}, repeat {key[1]} has moved because the file was changed")
    return line, cast(RolloutRow, row)


def row_of(run: RunFile, table: RolloutTable, index: int) -> RolloutRow | None:
    return row_line(run, table, index)[1]


def _key(table: RolloutTable, index: int) -> tuple[int, int] | None:
    return (int(table.task[index]), int(table.repeat[index])) if 0 <= index < len(table) else None
