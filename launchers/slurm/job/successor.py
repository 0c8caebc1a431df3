"""Successor: the job that continues the work if this one ends without completing it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rollyard.launchers.slurm.chain.record import ChainEventKind, ChainRecord
from rollyard.launchers.slurm.client.slurm_client import QueuedJob, SlurmClient
from rollyard.launchers.slurm.client.submitter import submit_once
from rollyard.launchers.slurm.job_files import comment
from rollyard.launchers.slurm.job_types import JobSpec, JobState
from rollyard.records.errors import RollyardError, RunError

_RETRY_S = 60.0


class Successor:
    """Queues and cancels the next job of a chain.

    It depends on this job with `afternotok`, so that it starts after any end other than success: a time limit, a lost
    node, kill -9. SLURM removes it if this job succeeds (--kill-on-invalid-dep).
    """

    def __init__(
        self,
        client: SlurmClient,
        record: ChainRecord,
        spec: JobSpec,
        chain: str,
        job_id: str,
        position: int,
        print_line: Callable[[str], None],
    ) -> None:
        self._client = client
        self._record = record
        self._spec = spec
        self._chain = chain
        self._job_id = job_id
        self._position = position
        self._print_line = print_line
        self._queued: str | None = None
        self._next_try = 0.0

    def ensure(self, listed: Sequence[QueuedJob] = (), *, at_once: bool = False) -> None:
        """Queue the successor unless it is queued already. A failure is recorded and tried again a minute later.

        `listed`: jobs of the chain; one of them may be the successor that this job queued before SLURM restarted it.
        `at_once`: do not wait for that minute, because this job ends.
        """
        if not self._spec.chain or self._queued is not None or (time.monotonic() < self._next_try and not at_once):
            return
        if self._position > self._spec.max_jobs:
            # Where chain.jsonl cannot be written, no start is counted; each job has its position from sbatch.
            limit = self._spec.max_jobs
            self._print_line(f"no successor: this is job {self._position} of the chain, and max_jobs is {limit}")
            self._next_try = time.monotonic() + _RETRY_S
            return
        wanted = comment(self._chain, self._position + 1)
        for job in listed:
            if job.comment == wanted and job.state == JobState.PENDING:
                self._queued = job.job_id
                return
        try:
            self._queued = submit_once(
                self._client, self._spec, self._chain, self._position + 1, [f"afternotok:{self._job_id}"]
            )
        except RollyardError as error:
            self._next_try = time.monotonic() + _RETRY_S
            self._print_line(f"the successor of this job could not be queued: {error}")
            self._record.append(ChainEventKind.WARNING, self._job_id, reason=f"no successor: {error}")
            return
        self._record.append(ChainEventKind.QUEUED, self._job_id, successor=self._queued)
        self._print_line(f"queued job {self._queued}, which continues if this job ends before its work is done")

    def cancel(self) -> None:
        """Cancel the successor. If that fails, the successor starts, sees that the chain has ended, and ends."""
        if self._queued is None:
            return
        try:
            self._client.cancel([self._queued])
        except RunError as error:
            self._print_line(f"the successor {self._queued} could not be cancelled: {error}")
