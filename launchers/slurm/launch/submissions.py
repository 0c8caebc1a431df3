"""Submissions: the manifest `submitted.jsonl`, which records what was submitted and what SLURM has accepted.

A line with `submitting` is written before `sbatch` is called, and a line with `job_id` after it has returned. If the
launcher is killed in between, the first line stands alone, and the job is looked up by its unique name.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pydantic import ValidationError

from rollyard.launchers.slurm.job_types import SubmittedJob
from rollyard.records.errors import RunError
from rollyard.records.io.jsonl import BadLine, ParsedLine, hand_over, iter_jsonl
from rollyard.records.io.locked_files import sync_folder
from rollyard.records.types import Record


class Intent(Record):
    """A job that is about to be submitted."""

    name: str
    submitting: float
    """Unix time."""


class Submissions:
    """The submitted jobs of a launch, in memory and in the manifest."""

    def __init__(self, path: Path) -> None:
        """Read the manifest. Raises RunError if a line other than the last is invalid."""
        self.path = path
        self.jobs: dict[str, SubmittedJob] = {}
        """Submitted jobs by name."""
        self.intents: set[str] = set()
        """Names of jobs that may have been submitted: their ids are not recorded."""
        self._torn_at: int | None = None
        """Offset of an incomplete last line, which the next line replaces."""
        self._unfinished = False
        """The last line is complete except for its line ending."""
        try:
            for found in iter_jsonl(path, hand_over):
                self._read(found)
        except FileNotFoundError:
            pass

    def announce(self, name: str) -> None:
        """Record that the job is about to be submitted."""
        self._append(Intent(name=name, submitting=time.time()))
        self.intents.add(name)

    def record(self, name: str, job_id: str, folder: Path) -> SubmittedJob:
        """Record the id of a submitted job."""
        job = SubmittedJob(name=name, job_id=job_id, folder=folder, submitted=time.time())
        self._append(job)
        self._add(job)
        return job

    def _read(self, found: ParsedLine | BadLine) -> None:
        if isinstance(found, BadLine):
            if not found.torn:
                raise RunError(f"{self.path}: line {found.number}{found.problem}")
            # Written before `sbatch` was called, or after the job can be found by its name.
            self._torn_at = found.offset
            return
        self._unfinished = not found.line.endswith(b"\n")
        try:
            if "submitting" in found.value:
                self.intents.add(Intent.model_validate(found.value).name)
            else:
                self._add(SubmittedJob.model_validate_json(found.line))
        except ValidationError as error:
            raise RunError(f"{self.path}: line {found.number} is not a line of a launch's manifest") from error

    def _add(self, job: SubmittedJob) -> None:
        self.jobs[job.name] = job
        self.intents.discard(job.name)

    def _append(self, record: Record) -> None:
        created = not self.path.exists()
        line = (b"\n" if self._unfinished else b"") + record.model_dump_json().encode() + b"\n"
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if self._torn_at is not None:
                    os.ftruncate(fd, self._torn_at)
                while line:
                    line = line[os.write(fd, line) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            if created:
                sync_folder(self.path.parent)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}") from error
        self._torn_at, self._unfinished = None, False
