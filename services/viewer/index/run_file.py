"""Provides the viewer with data from a rollout file and its sidecar files."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rollyard.services.io.lines import line_at
from rollyard.services.io.rollout_paths import RolloutPaths
from rollyard.services.metrics.loader.columns import CategoryColumn, displayable
from rollyard.services.metrics.loader.load_run import run_from_columns
from rollyard.services.metrics.loader.parallel_reader import PART, Read
from rollyard.services.metrics.profile import Run
from rollyard.services.rollouts.status_file import is_running, read_status
from rollyard.services.types import CollectionStatus
from rollyard.services.viewer.api.api_records import Page, RunFileStatus
from rollyard.services.viewer.api.rollout_list import Listing, Query
from rollyard.services.viewer.index.failed_attempts import AttemptFile, Failed
from rollyard.services.viewer.index.growing_index import FollowedFile
from rollyard.services.viewer.index.search_cache import SearchCache
from rollyard.services.viewer.index.table import NO_ROW, Table, table_of
from rollyard.services.viewer.index.throttled_cache import ThrottledCache

_SILENT_S = 60.0
"""A collection whose status has not been updated for this long is considered stopped."""
_SEARCH_WAIT_S = 0.2


class RunFile:
    """A rollout file in the viewer. One thread calls `advance`; any thread may query it."""

    def __init__(self, number: int, path: Path, name: str, *, threshold: float | None = None, part: int = PART) -> None:
        """Rewards of at least `threshold` count as solved."""
        self.number = number
        self.name = name
        self.path = path
        self.file = FollowedFile(path, part=part)
        self.attempts = AttemptFile(RolloutPaths(path).failures)
        self.status: CollectionStatus | None = None
        self.listing = Listing(table_of(self.file.snapshot.columns, self.attempts.failed, threshold))
        self._listed = 0
        """Number of bytes of the file whose rollouts are listed."""
        self._threshold = threshold
        self._searches = SearchCache(path)
        self._generation = 0
        self._was_running = False
        self._numbers = ThrottledCache[tuple[int, Run]]()

    @property
    def table(self) -> Table:
        """The table of all listed rollouts."""
        return self.listing.table

    @property
    def unread_bytes(self) -> int:
        """Number of bytes that have not been read yet."""
        return self.file.unread_bytes + self.attempts.unread_bytes

    def advance(self, pool: ProcessPoolExecutor | None = None) -> None:
        """Check the files and read the next step of new data."""
        self.status = read_status(self.path)
        running = is_running(self.status, _SILENT_S)  # failed rollouts may then be retried
        read = self.file.advance(pool)
        failed = self.attempts.advance()
        if self.file.generation != self._generation:
            self._generation = self.file.generation
            self._searches.stop()
        if read or failed or running != self._was_running:
            self._was_running = running
            final_attempts = _final_attempts(self.attempts.failed, running)
            self.listing = Listing(table_of(self.file.snapshot.columns, final_attempts, self._threshold))
            self._listed = self.file.snapshot.end

    def status_record(self) -> RunFileStatus:
        file, snapshot, measured = self.file, self.file.snapshot, self.table.measured
        return RunFileStatus(
            run=self.number,
            name=displayable(self.name),
            path=displayable(str(self.path), 4096),
            size=file.size,
            indexed=self._listed,
            measured=int(measured.sum()),
            failed=int(len(measured) - measured.sum()),
            torn=self._torn(),
            error=" ".join(filter(None, [file.error, snapshot.error])),
            status=self.status,
        )

    def page(self, query: Query) -> Page:
        """Return a page of the list. During a text search, it contains only rollouts found so far."""
        listing = self.listing
        if not query.q:
            return listing.page(query)
        found, searched = self._searches.of(query.q).progress(self.file.snapshot.end, _SEARCH_WAIT_S)
        return listing.page(query, found, searched)

    def line(self, table: Table, index: int) -> bytes | None:
        """Return a rollout's raw row; None if it has no row. Raises OSError if the file cannot be read."""
        offset = int(table.offset[index])
        return None if offset == NO_ROW else line_at(self.path, offset).rstrip(b"\r\n")

    def numbers(self) -> tuple[int, Run]:
        """Return the metrics, preceded by the number of bytes they cover. They may be slightly stale."""
        version = self.file.generation, self.file.snapshot.end, len(self.attempts.failed.task)
        return self._numbers.get(version, self._compute_numbers)

    def close(self) -> None:
        """Stop the searches and save the index."""
        self._searches.stop()
        self.file.close()

    def _compute_numbers(self) -> tuple[int, Run]:
        snapshot = self.file.snapshot
        read = Read(snapshot.columns, self.file.size, self._torn(), snapshot.has_task_index)
        return snapshot.end, run_from_columns(self.path, self.name, read, pass_threshold=self._threshold)

    def _torn(self) -> int:
        return max(self.file.size - self.file.reached, 0) if self.file.at_end else 0


def _final_attempts(failed: Failed, running: bool) -> Failed:
    """Return the attempts that will not be retried."""
    if not running:
        return failed
    ended = failed.terminal
    return Failed(
        failed.task[ended],
        failed.repeat[ended],
        failed.offset[ended],
        failed.terminal[ended],
        CategoryColumn(failed.kind.codes[ended], failed.kind.names),
        CategoryColumn(failed.agent.codes[ended], failed.agent.names),
    )
