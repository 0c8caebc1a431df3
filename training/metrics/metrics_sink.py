"""MetricsSink: the interface of loggers, and how a logger that fails is kept away from training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from rollyard.records.errors import OperatorError

log = logging.getLogger(__name__)

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
