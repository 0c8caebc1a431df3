"""Fresh: a value that is costly to make, made anew when what it is made of has changed, and not all the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_REST = 5
"""It is made anew after this many times what making it took: at most a sixth of a core goes into it."""


class ThrottledCache(Generic[T]):
    """Any thread may ask; one makes it, the others take the last one, or wait for the first."""

    def __init__(self) -> None:
        self._kept: tuple[object, T] | None = None
        self._rest_until = 0.0
        self._lock = threading.Lock()

    def get(self, version: object, make: Callable[[], T]) -> T:
        """The value as of `version`, or of a moment before it."""
        if self._kept is not None and self._lock.locked():
            return self._kept[1]
        with self._lock:
            stale = self._kept is None or self._kept[0] != version
            if self._kept is None or (stale and time.monotonic() >= self._rest_until):
                begun = time.monotonic()
                self._kept = version, make()
                self._rest_until = time.monotonic() + _REST * (time.monotonic() - begun)
            return self._kept[1]
