"""The clock of a simulation: makes time, ids and process numbers of this process depend on the seed alone.

Some of the product's classes take `time.monotonic` as a default argument, so it is replaced before they are imported.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import random
import secrets
import time
import uuid
from typing import Any

from tests.sim.loop import PROCESS, START, SimLoop


class SimClock:
    def __init__(self) -> None:
        self.loop: SimLoop | None = None
        self.rng = random.Random(0)
        self._pids: dict[str, int] = {}
        self.real_s = time.perf_counter

    def install(self) -> None:
        """Replace the clocks and the sources of randomness, for the rest of this process."""

        def now() -> float:
            return 0.0 if self.loop is None else self.loop.time()

        def token(size: int | None = None) -> bytes:
            return self.rng.randbytes(size or 32)

        def pid() -> int:
            return real_pid() if self.loop is None else self._pids.setdefault(PROCESS.get(), 1000 + len(self._pids))

        real_pid, real_localtime, real_strftime = os.getpid, time.localtime, time.strftime
        replaced: dict[Any, dict[str, Any]] = {
            time: {
                "monotonic": now,
                "perf_counter": now,
                "time": lambda: START + now(),
                "process_time": lambda: 0.0,
                "thread_time": lambda: 0.0,
                "time_ns": lambda: int((START + now()) * 1e9),
                "monotonic_ns": lambda: int(now() * 1e9),
                "perf_counter_ns": lambda: int(now() * 1e9),
                "localtime": lambda when=None: real_localtime(START + now() if when is None else when),
                "strftime": lambda shape, when=None: real_strftime(shape, when or real_localtime(START + now())),
            },
            secrets: {
                "token_bytes": token,
                "token_hex": lambda size=None: token(size).hex(),
                "token_urlsafe": lambda size=None: token(size).hex(),
            },
            os: {"urandom": token, "getpid": pid},
            importlib.metadata: {
                "version": functools.cache(importlib.metadata.version)
            },  # reads files for each command
            uuid: {"uuid4": lambda: uuid.UUID(bytes=self.rng.randbytes(16), version=4)},
        }
        for module, functions in replaced.items():
            for name, function in functions.items():
                setattr(module, name, function)
        from rollyard.services.http import loop_lag

        product: Any = loop_lag
        # Timeouts are kept in a set, whose order depends on hashes, which are memory addresses by default.
        product.LagAwareTimeout.__hash__ = lambda timeout: hash(timeout._until)
        product.EVERY_S = product.SWEEP_S  # with 0.1 s, half of all steps of a simulation would measure its lag

    def start(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self._pids.clear()
        self.rng = random.Random(f"ids {seed}")
        random.seed(seed)


CLOCK = SimClock()
