"""JobSignals: the signals of a SLURM job, as flags that a loop checks."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from types import FrameType


class JobSignals:
    """Installs handlers for SIGTERM, SIGINT, SIGUSR1 and SIGCHLD. `wait` returns early when one arrives."""

    def __init__(self) -> None:
        self.terminate = False
        """SIGTERM or SIGINT: the job is being ended."""
        self.drain = False
        """SIGUSR1: the job's time limit is near."""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)
        signal.signal(signal.SIGUSR1, self._drain)
        signal.signal(signal.SIGCHLD, self._ignore)

    def wait(self, timeout_s: float) -> None:
        """Wait until a signal arrives, at most `timeout_s`."""
        select.select([self._reader], [], [], max(0.0, timeout_s))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._reader, 512):
                pass

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.terminate = True

    def _drain(self, number: int, frame: FrameType | None) -> None:
        self.drain = True

    def _ignore(self, number: int, frame: FrameType | None) -> None:
        """SIGCHLD only has to wake up the loop."""
