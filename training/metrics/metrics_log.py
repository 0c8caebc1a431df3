"""MetricsLog: metrics.jsonl, and the sinks that get the same metrics."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Protocol

import orjson

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.jsonl import Lines, iter_jsonl, replace, skip

log = logging.getLogger(__name__)


class MetricsLog:
    """Appends a line per call to metrics.jsonl: `{"step": 12, "time": 1.7e9, "train/reward": 0.5, ...}`.

    Lines of the same step belong together; where they share a name, the later one counts. Numbers that are not finite
    become null, because JSON has no others.
    """

    def __init__(self, path: Path, sinks: Sequence[MetricsSink] = ()) -> None:
        self._path = path
        self._sinks = list(sinks)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line, then pass the metrics to the sinks. A sink that fails is dropped with a warning.

        Raises RunError if the file cannot be written.
        """
        numbers = {name: value if isinstance(value, int) else float(value) for name, value in metrics.items()}
        self._append(orjson.dumps({"step": step, "time": round(time.time(), 3), **numbers}) + b"\n")
        finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
        for sink in list(self._sinks):
            try:
                sink.log(step, finite)
            except Exception as error:
                self._sinks.remove(sink)
                log.warning("%s failed at step %d and gets no more metrics: %r", type(sink).__name__, step, error)

    def drop_after(self, step: int) -> None:
        """Remove the lines of later steps, and a last line that a killed process did not finish.

        Raises RunError if the file cannot be written.
        """
        if not self._path.exists():
            return
        before = self._path.read_bytes()
        lines = iter_jsonl(Lines(self._path, whole=True), skip)
        kept = b"".join(
            line.line for line in lines if isinstance(found := line.value.get("step"), int) and found <= step
        )
        if kept != before:
            replace(self._path, kept)

    def close(self, failed: bool = False) -> None:
        """Close the sinks."""
        for sink in self._sinks:
            try:
                sink.close(failed=failed)
            except Exception as error:
                log.warning("%s could not be closed: %r", type(sink).__name__, error)
        self._sinks = []

    def _append(self, line: bytes) -> None:
        """Write the line with one system call, so that readers do not see half of it."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab+", buffering=0) as file:
                _drop_unfinished_line(file)
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from error


def _drop_unfinished_line(file: FileIO) -> None:
    """Cut off a last line without a line ending, which a killed process or a full disk left."""
    size = file.seek(0, os.SEEK_END)
    if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
        file.seek(0)
        file.truncate(file.readall().rfind(b"\n") + 1)


_MAX_WAITING = 1_000
_MAX_PAUSE = 64


class MetricsSink(Protocol):
    """Gets the metrics of each step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics. A step may come twice: with its training metrics, and later with those of its evaluation."""
        ...

    def close(self, *, failed: bool) -> None:
        """End the run; `failed` tells how it ended."""
        ...


class RetriedSink:
    """A sink on another machine. While it fails, training goes on, its metrics wait, and one warning is logged.

    The next attempts follow after 1, 2, 4, ... and at most 64 further calls, because each may take minutes.
    """

    def __init__(self, name: str, start: Callable[[], MetricsSink]) -> None:
        """`start` creates the sink. Raises OperatorError if `start` does."""
        self._name = name
        self._start = start
        self._sink: MetricsSink | None = None
        self._waiting: list[tuple[int, dict[str, float]]] = []
        self._calls_left = 0
        self._pause = 1
        self._has_warned = False
        self._try()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._waiting = [*self._waiting[1 - _MAX_WAITING :], (step, dict(metrics))]
        if self._calls_left:
            self._calls_left -= 1
        else:
            self._try()

    def close(self, *, failed: bool) -> None:
        self._try()
        if self._sink is not None:
            try:
                self._sink.close(failed=failed)
            except Exception as error:
                self._warn(error)
        if self._waiting:
            log.warning(
                "%s did not get the metrics from step %d on; metrics.jsonl has them", self._name, self._waiting[0][0]
            )

    def _try(self) -> None:
        try:
            self._sink = self._sink or self._start()
            while self._waiting:
                self._sink.log(*self._waiting[0])
                self._waiting.pop(0)
            self._pause = 1
        except OperatorError:
            raise
        except Exception as error:
            self._warn(error)
            self._calls_left, self._pause = self._pause, min(2 * self._pause, _MAX_PAUSE)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s failed and will be tried again: %s. Training goes on; metrics.jsonl has all metrics",
                self._name,
                f"{type(error).__name__}: {error}",
            )
