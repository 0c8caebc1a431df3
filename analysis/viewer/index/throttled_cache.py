"""Caches an expensive value. When its version changes, the value is recomputed, but at a limited rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_PAUSE_FACTOR = 5
"""Pause between computations, as a multiple of their duration. It limits the cost to a sixth of a core."""


class ThrottledCache(Generic[T]):
    """Thread-safe: one thread computes while the others return the previous value or wait for the first."""

    def __init__(self) -> None:
        self._cached: tuple[object, T] | None = None
        self._paused_until = 0.0
        self._lock = threading.Lock()

    def get(self, version: object, make: Callable[[], T]) -> T:
        """Return the value for `version`, or a slightly older one."""
        if self._cached is not None and self._lock.locked():
            return self._cached[1]
        with self._lock:
            stale = self._cached is None or self._cached[0] != version
            if self._cached is None or (stale and time.monotonic() >= self._paused_until):
                started = time.monotonic()
                self._cached = version, make()
                self._paused_until = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - started)
            return self._cached[1]
