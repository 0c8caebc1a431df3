"""Makes time, ids and process numbers of this process depend on the seed alone. Imported before the product's code.

Some of the product's classes take `time.monotonic` as a default argument, so it is replaced before they are imported.
"""

from __future__ import annotations

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
        self.real_s = time.perf_counter

    def install(self) -> None:
        """Replace the clocks and the sources of randomness, for the rest of this process."""

        def now() -> float:
            return 0.0 if self.loop is None else self.loop.time()

        def token(size: int | None = None) -> bytes:
            return self.rng.randbytes(size or 32)

        real_pid = os.getpid()
        module: Any = time
        module.monotonic = module.perf_counter = now
        module.time = lambda: START + now()
        module.process_time = module.thread_time = lambda: 0.0
        module.time_ns = lambda: int((START + now()) * 1e9)
        module.monotonic_ns = module.perf_counter_ns = lambda: int(now() * 1e9)
        secret: Any = secrets
        secret.token_bytes = token
        secret.token_hex = lambda size=None: token(size).hex()
        secret.token_urlsafe = lambda size=None: token(size).hex()
        system: Any = os
        system.urandom = token
        system.getpid = lambda: real_pid if self.loop is None else 1000 + sum(PROCESS.get().encode())
        ids: Any = uuid
        ids.uuid4 = lambda: uuid.UUID(bytes=self.rng.randbytes(16), version=4)

    def start(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.rng = random.Random(f"ids {seed}")
        random.seed(seed)


CLOCK = SimClock()
