"""Provides the viewer with data from a rollout file and its sidecar files."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

from rollyard.analysis.charts.run_charts import profile_charts
from rollyard.analysis.metrics.columns import CategoryColumn, chosen, displayable
from rollyard.analysis.metrics.load import PART, Read, run_from_columns
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.solved import with_solved
from rollyard.analysis.viewer.api_records import ColumnHead, Numbers, Page, RunFileStatus
from rollyard.analysis.viewer.caches import ThrottledCache
from rollyard.analysis.viewer.failed_attempts import AttemptFile, Failed
from rollyard.analysis.viewer.fields import Cells, FileFields
from rollyard.analysis.viewer.growing_index import FollowedFile
from rollyard.analysis.viewer.rollout_list import NO_ROW, SORTS, Indexes, Listing, Query, Table, page_start, table_of
from rollyard.analysis.viewer.run_notes import RunNotes
from rollyard.analysis.viewer.text_search import SearchCache, Snippets
from rollyard.records.jsonl import line_at
from rollyard.records.rollout_file import is_running, read_status
from rollyard.records.rollout_paths import RolloutPaths
from rollyard.records.types import CollectionStatus

_SILENT_S = 60.0
"""A collection whose status has not been updated for this long is considered stopped."""
_SEARCH_WAIT_S = 0.2


class RunFile:
    """A rollout file in the viewer. One thread calls `advance`; any thread may query it."""

    def __init__(
        self,
        number: int,
        path: Path,
        name: str,
        *,
        threshold: float | None = None,
        part: int = PART,
    ) -> None:
        """Rewards of at least `threshold` count as solved."""
        self.number = number
        self.name = name
        self.path = path
        self.file = FollowedFile(path, part=part)
        self.attempts = AttemptFile(RolloutPaths(path).failures)
        self.status: CollectionStatus | None = None
        columns = self.file.snapshot.columns
        self.listing = Listing(table_of(columns, self.attempts.failed, threshold), with_solved(columns, threshold))
        self.notes = RunNotes(path, lambda: (self.file.generation, self.listing.columns))
        self.fields = FileFields(path, self.notes)
        self.listed = 0
        """Number of bytes of the file whose rollouts are listed."""
        self._threshold = threshold
        self._searches = SearchCache(path)
        self._snippets = Snippets(path)
        self._generation = 0
        self._running_since: float | None = None
        self._numbers = ThrottledCache[tuple[int, Run]]()

    @property
    def table(self) -> Table:
        """The table of all listed rollouts."""
        return self.listing.table

    @property
    def threshold(self) -> float | None:
        """Rewards of at least this count as solved; None: what the environment says, or the range of rewards."""
        return self._threshold

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that have not been read yet."""
        return self.file.unread_bytes + self.attempts.unread_bytes

    def advance(self, pool: ProcessPoolExecutor | None = None) -> None:
        """Check the files and read the next step of new data."""
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
            final_attempts = _final_attempts(self.attempts.failed, since)
            columns = self.file.snapshot.columns
            table = table_of(columns, final_attempts, self._threshold)
            self.listing = Listing(table, with_solved(columns, self._threshold))
            self.listed = self.file.snapshot.end
            self.fields.forget()

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
        return page.model_copy(update={"columns": columns, "cells": cells, "snippets": snippets})

    def select(self, query: Query) -> tuple[Listing, Indexes, float]:
        """Return the list, the indexes of the rollouts that the query selects, and the share of the file that has been
        searched for them. Raises ExpressionError.
        """
        listing, searched, found = self.listing, 1.0, None
        if query.q:
            found, searched = self._searches.of(query.q).progress(self.file.snapshot.end, _SEARCH_WAIT_S)
        name = query.sort.removeprefix("-")
        field = "" if name in SORTS else name
        measured = listing.table.measured
        chosen = self.fields.select(listing.columns, measured, self.listed, query.where, field)
        return listing, listing.select(query, found, chosen), min(searched, chosen.searched)

    def cells(self, listing: Listing, indexes: Indexes, names: str) -> tuple[tuple[ColumnHead, ...], Cells]:
        """Return the named columns, and their values in the rollouts at `indexes`. Raises as `page` does."""
        offsets, places = listing.table.offset[indexes], listing.places[indexes]
        return self.fields.cells(listing.columns, offsets.tolist(), places.tolist(), names)

    def line(self, table: Table, index: int) -> bytes | None:
        """Return a rollout's raw row; None if it has no row. Raises OSError if the file cannot be read."""
        offset = int(table.offset[index])
        return None if offset == NO_ROW else line_at(self.path, offset).rstrip(b"\r\n")

    def numbers(self) -> tuple[int, Run]:
        """Return the metrics, preceded by the number of bytes they cover. They may be slightly stale."""
        version = self.file.generation, self.file.snapshot.end, len(self.attempts.failed.task)
        return self._numbers.get(version, self._compute_numbers)

    def numbers_before(self, end: int) -> Run:
        """Return the metrics of the rows in the first `end` bytes of the file."""
        covered, run = self.numbers()
        if covered == end:
            return run
        snapshot = self.file.snapshot
        columns = chosen(snapshot.columns, snapshot.columns.offset < end)
        read = Read(columns, self.file.size, self._torn(), snapshot.has_task_index)
        return run_from_columns(self.path, self.name, read, pass_threshold=self._threshold)

    def close(self) -> None:
        """Stop the searches and save the index."""
        self._searches.stop()
        self.fields.stop()
        self.file.close()

    def _compute_numbers(self) -> tuple[int, Run]:
        snapshot = self.file.snapshot
        read = Read(snapshot.columns, self.file.size, self._torn(), snapshot.has_task_index)
        return snapshot.end, run_from_columns(self.path, self.name, read, pass_threshold=self._threshold)

    def _torn(self) -> int:
        return max(self.file.size - self.file.reached, 0) if self.file.at_end else 0


def _final_attempts(failed: Failed, since: float | None) -> Failed:
    """Return the attempts after which the rollout is not retried. `since`: the start of the running collection."""
    if since is None:
        return failed
    # What an earlier command abandoned is tried again. Files without `abandoned` only know terminal failures.
    ended = failed.terminal | (failed.abandoned_at >= since)
    return Failed(
        failed.task[ended],
        failed.repeat[ended],
        failed.offset[ended],
        failed.terminal[ended],
        failed.abandoned_at[ended],
        CategoryColumn(failed.kind.codes[ended], failed.kind.names),
        CategoryColumn(failed.agent.codes[ended], failed.agent.names),
    )


def numbers_of(run: RunFile) -> Numbers:
    """Return the metrics and the charts of the rows read so far."""
    end, found = run.numbers()
    return Numbers(indexed=end, profile=found.profile, charts=profile_charts(found.profile, RunLinks(run.number)))


class RunLinks:
    """Provides the URLs of one run's pages. Implements `rollyard.analysis.charts.svg.Links`."""

    def __init__(self, run: int) -> None:
        self._run = f"#/runs/{run}"

    def rollouts(self, **filters: str | float) -> str:
        """Return the URL of the rollout list with these filters applied."""
        encoded = {name: value if isinstance(value, str) else f"{value:.12g}" for name, value in filters.items()}
        return f"{self._run}?{urlencode(encoded)}"

    def task(self, task: int) -> str:
        """Return the URL of the list of a task's rollouts."""
        return self.rollouts(task=task)
