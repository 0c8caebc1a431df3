"""StopSignal: SIGTERM, which SageMaker sends 120 seconds before it ends a stopped job."""

from __future__ import annotations

import signal
from threading import Event
from types import FrameType


class JobStopped(BaseException):
    """The job was stopped while it was being prepared. Not an Exception, so that libraries do not catch it."""


class StopSignal:
    """Interrupts the preparation of a job; later, the loops that wait for programs look at `event`."""

    def __init__(self) -> None:
        self.event = Event()
        self.preparing = True
        """While this is true, the signal raises JobStopped in the main thread."""

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._received)

    @property
    def received(self) -> bool:
        return self.event.is_set()

    def _received(self, number: int, frame: FrameType | None) -> None:
        first = not self.event.is_set()
        self.event.set()
        if self.preparing and first:
            raise JobStopped
