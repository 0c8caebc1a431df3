"""CheckpointWatcher: evaluates the checkpoints of a training that runs in the same job."""

from __future__ import annotations

import time
from collections.abc import Callable

from rollyard.launchers.sagemaker.container.programs import Program

MAX_STARTS = 20
RESTART_PAUSE_S = 10.0
DRAIN_S = 120.0
"""After the training, the watching program gets this long to finish; the rest is evaluated afterwards."""


class CheckpointWatcher:
    """Restarts the watching program if it fails, and has the remaining checkpoints evaluated after the training."""

    def __init__(
        self,
        start: Callable[[], Program],
        start_final: Callable[[], Program] | None,
        stopped: Callable[[], bool],
        print_line: Callable[[str], None],
        drain_s: float = DRAIN_S,
    ) -> None:
        """`start_final`: starts a program that evaluates the remaining checkpoints and ends."""
        self._start = start
        self._start_final = start_final
        self._stopped = stopped
        self._print = print_line
        self._drain_s = drain_s
        self._starts = 1
        self._restart_at = 0.0
        self._program: Program | None = start()

    def check(self) -> None:
        """Start the program again if it has failed. A failing evaluation must not end the training."""
        if self._program is not None and (status := self._program.poll()) is not None:
            self._program.close()
            self._print(f"[eval] ended with exit status {status}: {self._program.last_line()}")
            self._program = None
            self._restart_at = time.monotonic() + RESTART_PAUSE_S
        if self._program is None and self._starts < MAX_STARTS and time.monotonic() >= self._restart_at:
            self._starts += 1
            self._program = self._start()

    def finish(self) -> str:
        """Finish evaluating. Returns why checkpoints are not evaluated; empty if all are."""
        if self._program is not None:
            if self._start_final is None:
                self._until_ended(self._program, self._drain_s)
            self._program.end(10.0 if self._stopped() else 30.0)
            self._program = None
        if self._start_final is None or self._stopped():
            return ""
        final = self._start_final()
        self._until_ended(final, None)
        status = final.end(10.0)
        return f"the evaluation of the last checkpoints failed ({status}): {final.last_line()}" if status else ""

    def stop(self) -> None:
        """End the program immediately."""
        if self._program is not None:
            self._program.terminate()

    def _until_ended(self, program: Program, limit_s: float | None) -> None:
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while program.poll() is None and not self._stopped() and (deadline is None or time.monotonic() < deadline):
            time.sleep(0.2)
