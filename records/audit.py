"""AuditLog: who changed what, and when: one JSON line for each act, in a file that only its owner can read."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field

from rollyard.records.locked_files import append_line, open_private
from rollyard.records.types import Json, Record

MAX_BYTES = 4 << 20
"""A larger file gets the name `audit.1.jsonl`, and replaces the one before it."""
log = logging.getLogger(__name__)


class Origin(Record):
    """Who acted."""

    address: str = ""
    """Address and port of the connection; empty for the process that writes the line."""
    uid: int | None = None
    """User id of the other end of the connection, if it is on this host."""
    plane: str = ""
    """`control`: the caller has sent the token of the run or the viewer; empty if none was needed."""


class AuditLine(Record):
    time: datetime
    run: str
    """Empty in the log of notes, which are about a file."""
    server: str
    act: str
    """Method and path of the request; of ng_run itself, a verb."""
    status: int | None = None
    """Status of the response; 499 if the caller disconnected."""
    origin: Origin
    detail: Json = Field(default_factory=dict)
    """What the request says. Never a secret: the writer redacts it."""


class AuditLog:
    """Several processes may write to the file."""

    def __init__(self, path: Path | None, run_id: str, server: str, *, mode: int = 0o600) -> None:
        """Without a path, as of servers that joined a run of another host, the lines go to the server's log. `mode`:
        permissions of a new file, apart from what the umask forbids.
        """
        self._path = path
        self._run_id = run_id
        self._server = server
        self._mode = mode

    def write(self, act: str, origin: Origin, detail: Json, status: int | None = None) -> None:
        """Write a line. If the file cannot be written, the line is logged instead: the act has already been done."""
        line = AuditLine(
            time=datetime.now(UTC),
            run=self._run_id,
            server=self._server,
            act=act,
            status=status,
            origin=origin,
            detail=detail,
        )
        # ASCII: a terminal that shows the file must not obey the characters of a caller.
        text = json.dumps(line.model_dump(mode="json"), separators=(",", ":"))
        if self._path is None:
            log.warning("audit: %s", text)
            return
        try:
            self._append(self._path, text.encode() + b"\n")
        except OSError as error:
            log.error("%s cannot be written (%s), audit: %s", self._path, error.strerror, text)

    def _append(self, path: Path, line: bytes) -> None:
        with open_private(path, mode=self._mode) as file:
            with suppress(OSError):  # without locks, two processes may move the file at the same time
                fcntl.flock(file, fcntl.LOCK_EX)
            found = os.fstat(file.fileno())
            if found.st_size + len(line) > MAX_BYTES and os.path.samestat(found, path.stat()):
                path.replace(path.with_name(f"{path.stem}.1{path.suffix}"))
                with open_private(path, mode=self._mode) as fresh:
                    append_line(fresh.fileno(), line)
            else:
                append_line(file.fileno(), line)
