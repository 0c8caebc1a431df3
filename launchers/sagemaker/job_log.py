"""JobLog: the Markdown table that maps job names to experiments (`docs/job_log.md`)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import replace
from rollyard.records.io.locked_files import open_locked
from rollyard.records.io.terminal import plain

HEADER = "| Job Name | Config | Description | Submitted |\n|----------|--------|-------------|-----------|\n"
_TITLE = "# Submitted jobs\n\n"
LOCK_TIMEOUT_S = 20.0
_ROW = re.compile(r"^\| *([a-zA-Z0-9][a-zA-Z0-9-]*) *\|", re.MULTILINE)


class JobLog:
    """A Markdown file with one line for each job. Several processes may write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, name: str, config: str, description: str, submitted: datetime) -> None:
        """Append a line; creates the file and its header if needed. Raises RunError or OSError if it cannot."""
        line = " | ".join(["| " + _cell(name), _cell(config), _cell(description), f"{submitted:%Y-%m-%d %H:%M} |\n"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked() as fd:
            text = self.path.read_text()
            # A writer that was killed, or an editor, may have left a line without its end.
            start = "" if not text or text.endswith("\n") else "\n"
            header = "" if HEADER.partition("\n")[0] in text else ("\n" if text else _TITLE) + HEADER
            _write(fd, f"{start}{header}{line}".encode())

    def remove(self, name: str) -> None:
        """Delete the line of a job that could not be submitted."""
        with self._locked():
            lines = self.path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if not ((found := _ROW.match(line)) and found[1] == name)]
            replace(self.path, "".join(kept).encode())

    def names(self) -> list[str]:
        """Return the names of all jobs, in the order of their submission; empty if there is no file."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        return [name for name in _ROW.findall(text) if name != "Job"]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the file and wait for other writers, each of which needs milliseconds."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fd = open_locked(self.path)
                break
            except RunError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        try:
            yield fd
        finally:
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
    os.fsync(fd)


def _cell(text: str) -> str:
    """Return text that stays in one cell of a Markdown table."""
    return plain(" ".join(text.split())).replace("\\", "\\\\").replace("|", "\\|")
