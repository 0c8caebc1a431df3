"""Caches that limit how often a result is computed again while the file that it is about is being read.

`PacedCache` keeps the results of several questions, `ThrottledCache` that of one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
_PAUSE_FACTOR = 5
"""Pause between computations, as a multiple of their duration. It limits the cost to a sixth of a core."""


class Identity:
    """Makes an object hashable by its identity, and keeps it alive for as long as it is a key."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class PacedCache(Generic[T]):
    """Thread-safe; in the worst case, two threads compute the same result."""

    def __init__(self, size: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = size
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[Hashable, T, float]] = OrderedDict()
        """By key: the version of the result, the result, and until when it may be returned for other versions."""
        self._lock = threading.Lock()

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T], *, final: bool) -> T:
        """Return the result for `key`.

        It may be that of an earlier version, unless `final`: that version is the last one for now.
        """
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                if found[0] == version or (not final and self._clock() < found[2]):
                    return found[1]
        started = self._clock()
        made = make()
        ended = self._clock()
        with self._lock:
            self._kept[key] = version, made, ended + _PAUSE_FACTOR * (ended - started)
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return made

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


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
