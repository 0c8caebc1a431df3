"""JobCommand: the command of a job as a process in its own group, whose output is that of the job."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.io.terminal import plain_line
from rollyard.services.runtime.process_setup import die_with_parent

_TAIL_BYTES, _TAIL_LINES, _LINE_CHARACTERS = 8192, 3, 300


class JobCommand:
    """A running command. It is killed with the runner, so that nothing runs outside a job.

    `terminate`: sends SIGTERM to the command; None: to its process. srun needs this, because it kills its tasks when it
    gets SIGTERM itself.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path,
        output: Path,
        terminate: Callable[[], None] | None = None,
    ) -> None:
        self._output = output
        self._offset = output.stat().st_size if output.exists() else 0
        self._terminate = terminate
        try:
            self._process = subprocess.Popen(
                command,
                env={
                    "PYTHONUNBUFFERED": "1",
                    **environment,
                },  # the last lines of its output are the last that it printed
                cwd=directory,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RunError(f"the command {plain_line(str(command[0]))} cannot be started: {error}") from error

    def status(self) -> int | None:
        """Return the exit status, -N for signal N; None while it runs."""
        return self._process.poll()

    def drain(self) -> None:
        """Tell the command to finish. Signals only the process itself, which stops those that it has started."""
        if self._terminate is not None:
            self._terminate()
        elif self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the command and the rest of its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def last_lines(self) -> str:
        """Return the last lines of its output, on one line."""
        try:
            with self._output.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._offset, end - _TAIL_BYTES))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [plain_line(line.strip())[:_LINE_CHARACTERS] for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-_TAIL_LINES:])
