"""HeartbeatWriter: renews a worker's leases from a thread, so that rollouts cannot delay it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import orjson

from rollyard.services.rollouts.shared.exclusive_files import replace_unsynced
from rollyard.services.rollouts.shared.shared_records import Heartbeat, Owner


class HeartbeatWriter:
    """Writes the heartbeat of one worker three times per lease."""

    def __init__(
        self, workers: Path, owner: Owner, lease_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = workers / f"{owner.token}.json"
        self._owner = owner
        self.lease_s = lease_s
        self._clock = clock
        self._beats = 0
        self._released: list[tuple[int, int]] = []
        self._last = clock()
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_beating, name="lease heartbeat", daemon=True)
        self.lapses = 0
        """How often the leases may have expired, because the process or the file system stalled."""

    def start(self) -> None:
        """Write the first heartbeat, then one every third of a lease. Raises OSError if the first cannot be written."""
        self.beat()
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """False if the leases may have expired, because no heartbeat could be written for a whole lease."""
        return self._clock() - self._last < self.lease_s

    def release(self, block: int, generation: int) -> None:
        """Give up a lease: other workers may take the block at once. Raises OSError."""
        self._released.append((block, generation))
        self.beat()

    def end(self) -> None:
        """Stop, and give up all leases. Raises OSError."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self.beat(ended=True)

    def beat(self, *, ended: bool = False) -> None:
        """Renew the leases now. Raises OSError."""
        with self._writing:
            self._beats += 1
            # Before the write: it may hang for longer than a lease, and others see the file only after it.
            began = self._clock()
            record = Heartbeat(
                owner=self._owner,
                lease_s=self.lease_s,
                beat=self._beats,
                ended=ended,
                released=list(self._released),
            )
            replace_unsynced(self._path, orjson.dumps(record.model_dump()))
            if self._clock() - self._last > self.lease_s:
                self.lapses += 1
            self._last = began

    def _keep_beating(self) -> None:
        while not self._stopping.wait(self.lease_s / 3):
            try:
                self.beat()
            except OSError:
                continue  # the worker stops starting rollouts once a whole lease has passed
