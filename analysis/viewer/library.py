"""Manages the opened rollout files and the thread that reads them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rollyard.analysis.metrics.load import PART, reading_pool
from rollyard.analysis.viewer.api_records import Overview
from rollyard.analysis.viewer.growing_index import NICE, WORTH_PROCESSES
from rollyard.analysis.viewer.run_file import RunFile

log = logging.getLogger(__name__)
CHECK_EVERY_S = 0.5


class Closed(Exception):
    """The viewer ends while files are being read."""


class UnknownRun(Exception):
    """There is no run with the number."""


class FileIndex:
    """The opened runs, by number. `start` starts reading them; `close` stops reading and saves the indexes."""

    def __init__(
        self,
        files: Sequence[tuple[str, Path]],
        *,
        version: str = "",
        threshold: float | None = None,
        workers: int | None = None,
        worth_processes: int = WORTH_PROCESSES,
        part: int = PART,
        series: bool = False,
    ) -> None:
        """`files` contains the name and path of each file. Rewards of at least `threshold` count as solved. `workers`
        is the number of processes that read a large file (default: one per CPU), and `part` is the number of bytes they
        read per step. `series`: the files are the steps of a series.
        """
        self._series = series
        self._threshold, self._part = threshold, part
        self._version = version
        self._workers = workers or len(os.sched_getaffinity(0))
        self._runs = {number: self._opened(number, name, path) for number, (name, path) in enumerate(files)}
        self._worth_processes = worth_processes
        self._pool: ProcessPoolExecutor | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, name="library", daemon=True)

    @property
    def runs(self) -> list[RunFile]:
        return [run for _, run in sorted(self._runs.copy().items())]

    def find(self, number: int) -> RunFile:
        if (run := self._runs.get(number)) is None:
            raise UnknownRun(f"run {number} does not exist; runs are numbered from 0 to {len(self._runs) - 1}")
        return run

    def start(self) -> None:
        """Start reading in the background. All runs are available immediately, even if they have not been read yet."""
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if (pool := self._pool) is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join()
        if pool is not None:
            pool.shutdown(wait=True)  # wait for the reader processes; a part takes about a second
        for run in self.runs:
            run.close()

    def read_through(self) -> None:
        """Read all files to the end in the calling thread instead of in the background."""
        while self._round() or any(not run.file.is_sorted and not run.file.error for run in self.runs):
            for run in self.runs:
                run.file.hurry()

    def overview(self, wanted: Sequence[int] = ()) -> Overview:
        """Return the state of the opened runs. `wanted`: runs that a page shows; see TrainingIndex."""
        names = ", ".join(run.name for run in self.runs)
        runs = [run.status_record() for run in self.runs]
        return Overview(title=names, version=self._version, runs=runs, series=self._series)

    def _opened(self, number: int, name: str, path: Path) -> RunFile:
        return RunFile(number, path, name, threshold=self._threshold, workers=self._workers, part=self._part)

    def _read(self) -> None:
        more = True
        while not self._closing.wait(0 if more else CHECK_EVERY_S):
            try:
                more = self._round()
            except Exception:
                if self._closing.is_set():
                    return
                # The page continues with the rows read so far, and the next round tries again.
                log.exception("reading the rollout files failed")
                more = False

    def _round(self) -> bool:
        """Check every file. Return whether one of them has more data to read immediately."""
        more = self._advance(None)
        if self._workers > 1 and max((run.file.unread_bytes for run in self.runs), default=0) >= self._worth_processes:
            try:
                with reading_pool(self._workers, nice=NICE) as self._pool:
                    while self._advance(self._pool):
                        pass
                return False
            except BrokenProcessPool:
                log.warning(
                    "a reader process was killed, possibly because memory ran out; continuing in the main process"
                )
                self._workers = 1
            finally:
                self._pool = None
        return more

    def _advance(self, pool: ProcessPoolExecutor | None) -> bool:
        more = False
        for run in self.runs:
            if self._closing.is_set():
                raise Closed
            run.advance(pool)
            more |= run.unread_bytes > 0
        return more
