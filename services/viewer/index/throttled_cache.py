"""Caches an expensive value and recomputes it when its version has changed, at a limited rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_REST = 5
"""The pause between computations as a multiple of their duration; limits the cost to a sixth of a core."""


class ThrottledCache(Generic[T]):
    """Thread-safe: one thread computes while the others return the previous value or wait for the first."""

    def __init__(self) -> None:
        self._kept: tuple[object, T] | None = None
        self._rest_until = 0.0
        self._lock = threading.Lock()

    def get(self, version: object, make: Callable[[], T]) -> T:
        """Return the value for `version` or for a slightly older one."""
        if self._kept is not None and self._lock.locked():
            return self._kept[1]
        with self._lock:
            stale = self._kept is None or self._kept[0] != version
            if self._kept is None or (stale and time.monotonic() >= self._rest_until):
                started = time.monotonic()
                self._kept = version, make()
                self._rest_until = time.monotonic() + _REST * (time.monotonic() - started)
            return self._kept[1]
