"""ChainRecord: chain.jsonl in a job's folder, one line for each event of a chain's jobs.

Jobs of a chain run one after another, so the file has one writer at a time. A job killed while it writes leaves an
incomplete last line, which readers skip and the next writer ends.
"""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from rollyard.launchers.slurm.job_types import JobState
from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.types import Record

CHAIN_FILE = "chain.jsonl"


class ChainEventKind(StrEnum):
    """What happened."""

    STARTED = "started"
    """A job started the command, or was about to."""
    QUEUED = "queued"
    """A job queued its successor."""
    ENDED = "ended"
    """A job ended. Written by the job itself, or by a later one if it was killed."""
    CLOSED = "closed"
    """The chain ended: no further job does any work."""
    WARNING = "warning"
    """Something failed that does not end the job."""


class ChainEvent(Record):
    """One line of chain.jsonl."""

    event: ChainEventKind
    chain: str
    job_id: str
    restart: int = 0
    """How often SLURM had put this job back into the queue when it started."""
    time: float
    """Unix time; of an end, if it is written later, the last time at which the job was known to be alive."""
    node: str | None = None
    state: JobState | None = None
    reason: str | None = None
    successor: str | None = None


class ChainRecord:
    """Reads and appends the events of one chain."""

    def __init__(self, folder: Path, chain: str) -> None:
        self._path = folder / CHAIN_FILE
        self._chain = chain

    def events(self) -> list[ChainEvent]:
        """Return the events of this chain, in order. Lines that are not events are skipped."""
        found: list[ChainEvent] = []
        try:
            for row in iter_jsonl(self._path, skip):
                try:
                    found.append(ChainEvent.model_validate(row.value))
                except ValidationError:  # written by a newer version
                    continue
        except FileNotFoundError:
            return []
        return [event for event in found if event.chain == self._chain]

    def append(
        self,
        event: ChainEventKind,
        job_id: str,
        restart: int = 0,
        *,
        at: float | None = None,
        node: str | None = None,
        state: JobState | None = None,
        reason: str | None = None,
        successor: str | None = None,
    ) -> None:
        """Append one line and sync it. Raises RunError if it cannot be written."""
        written = ChainEvent(
            event=event,
            chain=self._chain,
            job_id=job_id,
            restart=restart,
            time=time.time() if at is None else at,
            node=node,
            state=state,
            reason=reason,
            successor=successor,
        )
        line = written.model_dump_json(exclude_none=True).encode() + b"\n"
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                size = os.fstat(fd).st_size
                torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                os.write(fd, b"\n" + line if torn else line)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}") from error
