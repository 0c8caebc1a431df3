"""Library: every rollout file that was opened, and the one thread that reads them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rollyard.services.metrics.loader.parallel_reader import PART, reading_pool
from rollyard.services.viewer.api.api_records import Overview
from rollyard.services.viewer.index.run_file import RunFile

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
_NICE = 5
"""Whoever waits for an answer goes first."""
WORTH_PROCESSES = 256 << 20
"""Bytes to read from which on several processes save more than their start takes."""


class _Closed(Exception):
    """The library is being closed while files are read."""


class FileIndex:
    """Opened runs by their number. `start` begins to read, `close` ends it and keeps what was read."""

    def __init__(
        self,
        files: Sequence[tuple[str, Path]],
        *,
        version: str = "",
        threshold: float | None = None,
        workers: int | None = None,
        worth_processes: int = WORTH_PROCESSES,
        part: int = PART,
    ) -> None:
        """`files`: name and path of each; `threshold`: a reward from there on counts as solved; `workers`: processes
        that read a large file, default one a processor; `part`: bytes that one reads at a time.
        """
        self.runs = [
            RunFile(number, path, name, threshold=threshold, part=part) for number, (name, path) in enumerate(files)
        ]
        self._version = version
        self._workers = workers or len(os.sched_getaffinity(0))
        self._worth_processes = worth_processes
        self._pool: ProcessPoolExecutor | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, name="library", daemon=True)

    def start(self) -> None:
        """Begin to read; every run can be asked at once."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading, keep what was read."""
        self._closing.set()
        if (pool := self._pool) is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            self._thread.join()
        for run in self.runs:
            run.close()

    def read_through(self) -> None:
        """Read all there is, here and now, instead of in the background."""
        while self._round():
            pass

    def overview(self) -> Overview:
        """Every run."""
        names = ", ".join(run.name for run in self.runs)
        return Overview(title=names, version=self._version, runs=[run.opened() for run in self.runs])

    def _read(self) -> None:
        more = True
        while not self._closing.wait(0 if more else LOOK_EVERY_S):
            try:
                more = self._round()
            except Exception:
                if self._closing.is_set():
                    return
                # The page goes on with what is read, and the next look may find things mended.
                log.exception("reading failed")
                more = False

    def _round(self) -> bool:
        """Look at every file; True when one has more to read at once."""
        more = self._advance(None)
        if self._workers > 1 and max(run.file.behind for run in self.runs) >= self._worth_processes:
            try:
                with reading_pool(self._workers, nice=_NICE) as self._pool:
                    while self._advance(self._pool):
                        pass
                return False
            except BrokenProcessPool:
                log.warning("a process that read was ended from outside (out of memory?): going on with this one")
                self._workers = 1
            finally:
                self._pool = None
        return more

    def _advance(self, pool: ProcessPoolExecutor | None) -> bool:
        more = False
        for run in self.runs:
            if self._closing.is_set():
                raise _Closed
            run.advance(pool)
            more |= run.behind > 0
        return more
