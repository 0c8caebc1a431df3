"""Program: a child process in its own process group, whose output goes to a file and to this job's log."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from types import FrameType

from rollyard.records import process_group
from rollyard.records.errors import OperatorError

STOP_GRACE_S = 60.0
"""A program may end by itself this long after SIGTERM. SageMaker ends a stopped job after 120 s."""
_TAIL_S = 0.2
_LAST_BYTES = 1 << 16
_ERROR = re.compile(
    r"(?:[A-Za-z_][\w.]*(?:Error|Exception|Failure|Exit|Interrupt)(?::|$)"  # the end of a traceback
    r"|(?:ng_\w+|[\w.-]+\.(?:py|sh)): "  # Rollyard's commands and scripts
    r"|.*\b(?i:error|fatal): )"
)
_HINT = re.compile(r"Try '[^']+ --help'\.")


class Program:
    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        print_line: Callable[[str], None],
    ) -> None:
        """Start it. Raises OperatorError if the program does not exist."""
        self.name = name
        self.command = list(command)
        self.log = log
        self._print = print_line
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise OperatorError(
                f"the program {command[0]!r} is not installed in this image; set another with --entrypoint"
            )
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # The output goes to a file first: a slow log service never holds up the program, and no line is dropped.
            self.process = process_group.start(
                command,
                cwd=folder,
                env={"PYTHONUNBUFFERED": "1", **environment},  # errors come after what was printed before them
                stdout=output,
                stderr=output,
            )
        self._tail = threading.Thread(target=self._follow, daemon=True)
        self._tail.start()

    def poll(self) -> int | None:
        """Return the exit status; None while it runs. 128 + the signal's number if a signal ended it."""
        status = self.process.poll()
        return 128 - status if status is not None and status < 0 else status

    def terminate(self) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)

    def end(self, grace_s: float) -> int:
        """End the program, by force after `grace_s`, and return its status. Children that are left are killed."""
        self.terminate()
        deadline = time.monotonic() + grace_s
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.close()

    def close(self) -> int:
        """Kill the remaining processes, print the rest of the output and return the status."""
        process_group.end(self.process)
        self._tail.join(10)
        return self.poll() or 0

    def last_line(self) -> str:
        """Return the last line of its output that reads like an error; the last line if none does."""
        try:
            with self.log.open("rb") as opened:
                opened.seek(max(0, self.log.stat().st_size - _LAST_BYTES))
                lines = opened.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        lines = [line for line in map(str.strip, reversed(lines)) if line and not _HINT.fullmatch(line)]
        return next((line for line in lines if _ERROR.match(line)), lines[0] if lines else "")

    def _follow(self) -> None:
        with self.log.open("rb") as opened:
            while True:
                ended = self.process.poll() is not None
                for line in opened.read().decode("utf-8", "replace").splitlines():
                    self._print(f"[{self.name}] {line}")
                if ended:
                    return
                time.sleep(_TAIL_S)


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
