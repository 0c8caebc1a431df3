"""TokenIndex: counts the tokens of runs in the background, and again when a file has changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass, field

from rollyard.services.metrics.loader.parallel_reader import reading_pool
from rollyard.services.metrics.tokens.sample import MAX_BYTES, sampled_ranges, tally_range
from rollyard.services.metrics.tokens.token_tally import TokenTally, empty_tally, merged_tallies
from rollyard.services.viewer.run_file import RunFile

_WAIT_S = 0.3
"""A request waits for this long, so that small files are complete in the first response."""
_WORTH_PROCESS = 32 << 20
"""Minimum number of bytes for which a process is started, so that requests are not held up."""
_PAUSE_S, _PAUSE_FACTOR = 5.0, 10.0
"""A growing file is read again after a pause: at least so many seconds, and so many times the duration of reading."""
_NICE = 5


@dataclass(frozen=True)
class Counted:
    """The tokens of the part of a file's sample that has been read."""

    tally: TokenTally
    examined: float = 0.0
    """Share of the sample that has been read."""
    sampled: bool = False
    error: str = ""


@dataclass
class _Followed:
    """`lock` is held while fields change."""

    fingerprint: tuple[int, int] = (-1, -1)
    """Generation and size of the file when reading it began."""
    again: float = 0.0
    """When it may be read again if it has changed (monotonic time)."""
    counted: Counted = field(default_factory=lambda: Counted(empty_tally()))
    reader: threading.Thread | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class TokenIndex:
    """Thread-safe. Reading a file begins with the first question about it."""

    def __init__(self, find_run: Callable[[int], RunFile], *, most: int = MAX_BYTES, pause_s: float = _PAUSE_S) -> None:
        """`most`: number of bytes of a file above which it is sampled. `pause_s`: minimum time between two counts of a
        growing file.
        """
        self._find_run, self._most, self._pause_s = find_run, most, pause_s
        self._files: dict[int, _Followed] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def counted(self, number: int) -> Counted:
        """Return what has been counted, and go on counting. Raises UnknownRun."""
        run = self._find_run(number)
        with self._lock:
            followed = self._files.setdefault(number, _Followed())
        with followed.lock:
            now = run.file.generation, _size(run)
            idle = followed.reader is None or not followed.reader.is_alive()
            if idle and now != followed.fingerprint and time.monotonic() >= followed.again:
                followed.fingerprint = now
                arguments = run, followed, now[1]
                followed.reader = threading.Thread(target=self._read, args=arguments, name="tokens", daemon=True)
                followed.reader.start()
            reader = followed.reader
        if reader is not None:
            reader.join(_WAIT_S)
        return followed.counted

    def close(self) -> None:
        """Stop after the parts that are being read."""
        self._closing.set()

    def _read(self, run: RunFile, followed: _Followed, size: int) -> None:
        started, sampled = time.monotonic(), size > self._most
        tally, is_first = empty_tally(), not followed.counted.examined
        ranges = sampled_ranges(size, self._most)
        read = sum(stop - start for start, stop in ranges)
        error = ""
        try:
            with reading_pool(1, nice=_NICE) if read >= _WORTH_PROCESS else nullcontext(None) as pool:
                for index, (start, stop) in enumerate(ranges):
                    if self._closing.is_set():
                        raise _Stopped
                    arguments = run.path, start, stop
                    part = tally_range(*arguments) if pool is None else pool.submit(tally_range, *arguments).result()
                    tally = merged_tallies([tally, part])
                    if is_first:  # later, the previous count is shown until the new one is complete
                        followed.counted = Counted(tally, (index + 1) / (len(ranges) + 1), sampled)
        except _Stopped:
            return
        except (OSError, BrokenProcessPool) as problem:
            error = f"{run.path} cannot be read for its tokens: {problem}"
        with followed.lock:
            followed.counted = Counted(tally, 1.0, sampled, error)
            ended = time.monotonic()
            followed.again = ended + max(self._pause_s, _PAUSE_FACTOR * (ended - started))


def counted_now(run: RunFile, most: int = MAX_BYTES) -> Counted:
    """Count the tokens of a file in the calling thread. Raises OSError if it cannot be read."""
    size = run.file.snapshot.end
    parts = [tally_range(run.path, start, stop) for start, stop in sampled_ranges(size, most)]
    return Counted(merged_tallies([empty_tally(), *parts]), 1.0, size > most)


def _size(run: RunFile) -> int:
    """Return the size of the file, which may not be indexed yet."""
    try:
        return run.path.stat().st_size
    except OSError:
        return 0


class _Stopped(Exception):
    """The viewer closes, so that the pool must end at once."""
