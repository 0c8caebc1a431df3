"""The program of every job: `python -m rollyard.launchers.slurm.job_runner FOLDER POSITION CHAIN`.

It queues the job's successor, runs the command, and records how the job ended. Exit statuses: 0, the work is done;
75, the command stopped early as it was told to; otherwise the command's own, or 1. Only 0 ends the chain by itself.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rollyard.launchers.slurm.chain.attempts import ChainEnd, attempts_of, end_by_rule, end_of
from rollyard.launchers.slurm.chain.markers import CANCELLED, DONE, Marker, read_marker, write_marker
from rollyard.launchers.slurm.chain.record import ChainEventKind, ChainRecord
from rollyard.launchers.slurm.client.slurm_client import QueuedJob, SlurmClient, SlurmError
from rollyard.launchers.slurm.job.heartbeat import Heartbeat
from rollyard.launchers.slurm.job.predecessors import settle
from rollyard.launchers.slurm.job.signals import JobSignals
from rollyard.launchers.slurm.job.successor import Successor
from rollyard.launchers.slurm.job.work import JobWork, WorkEnd
from rollyard.launchers.slurm.job_files import ChainJob, chain_comment, comment, read_job
from rollyard.launchers.slurm.job_types import JobState
from rollyard.records.errors import RollyardError

EXIT_ENDED, EXIT_DRAINED = 1, 75
CLIENT_TIMEOUT_S = 30.0


class RunningJob(NamedTuple):
    """The job in which the runner runs, from SLURM's environment variables."""

    job_id: str
    restart: int
    """How often SLURM has put the job back into the queue."""
    position: int
    """Position in the chain; the first job has 1."""
    node: str


class JobRunner:
    """Runs one job of a chain."""

    def __init__(
        self, folder: Path, job: ChainJob, me: RunningJob, environment: Mapping[str, str], signals: JobSignals
    ) -> None:
        self._folder = folder
        self._job = job
        self._me = me
        self._environment = environment
        self._signals = signals
        self._client = SlurmClient(environment, CLIENT_TIMEOUT_S)
        self._record = ChainRecord(folder, job.chain)
        self._heartbeat = Heartbeat(folder, me.job_id, me.restart)
        self._successor = Successor(self._client, self._record, job.spec, job.chain, me.job_id, me.position, print_line)

    def run(self) -> int:
        """Run the job and return its exit status."""
        if (status := self._over()) is not None:
            return status
        listed = self._listed()
        if self._is_duplicate(listed):
            return EXIT_ENDED
        # Before anything else, so that the chain continues even if this process is killed now.
        self._successor.ensure(listed)
        if (other := settle(self._client, self._record, self._job.spec, self._folder, self._me.job_id)) is not None:
            print_line(f"job {other} of this chain is still running; this one ends")
            self._successor.cancel()
            return EXIT_ENDED
        if end := end_by_rule(self._job.spec, attempts_of(self._record.events())):
            if end.state == JobState.COMPLETED:  # its job was killed before it could write the marker
                self._mark_done()
            self._close(end)
            return 0 if end.state == JobState.COMPLETED else EXIT_ENDED
        self._record.append(ChainEventKind.STARTED, self._me.job_id, self._me.restart, node=self._me.node)
        self._heartbeat.beat()
        work = JobWork(
            self._folder,
            self._job.spec,
            self._me.job_id,
            self._me.restart,
            self._environment,
            self._signals,
            self._client,
        )
        return self._finish(work.run(self._each_time, self._interrupted, self._record))

    def _each_time(self) -> None:
        self._heartbeat.beat()
        self._successor.ensure()

    def _interrupted(self, state: JobState) -> None:
        """Record the end at once, because SLURM kills this process soon."""
        self._ended(WorkEnd(state, f"SLURM ended the job: {state}", EXIT_DRAINED))
        if state == JobState.CANCELLED:
            self._close(ChainEnd(state, f"job {self._me.job_id} was cancelled"))

    def _over(self) -> int | None:
        """Return the exit status if the chain has ended already."""
        marker = read_marker(self._folder / DONE)
        if marker is not None and marker.chain == self._job.chain:
            print_line(f"the work was completed by job {marker.job_id}")
            return 0
        if end := end_of(self._record.events()):
            print_line(f"the chain has ended: {end.state}, {end.reason}")
            return EXIT_ENDED
        cancelled = read_marker(self._folder / CANCELLED)
        if cancelled is not None and cancelled.chain == self._job.chain:
            self._close(ChainEnd(JobState.CANCELLED, "the chain was cancelled"))
            return EXIT_ENDED
        return None

    def _listed(self) -> list[QueuedJob]:
        try:
            jobs = self._client.queue()
        except SlurmError as error:
            print_line(f"the jobs of this chain could not be listed: {error}")
            return []
        return [job for job in jobs if job.comment.startswith(chain_comment(self._job.chain))]

    def _is_duplicate(self, listed: list[QueuedJob]) -> bool:
        """Return whether this job was submitted twice because an answer of sbatch was lost. The first one continues."""
        same = [job for job in listed if job.comment == comment(self._job.chain, self._me.position)]
        first = min((int(job.job_id) for job in same if job.state.alive), default=int(self._me.job_id))
        if first < int(self._me.job_id):
            print_line(f"job {first} is the same job, because sbatch was called twice; this one ends")
        return first < int(self._me.job_id)

    def _finish(self, end: WorkEnd) -> int:
        self._ended(end)
        if end.state == JobState.COMPLETED:
            self._mark_done()
            self._close(ChainEnd(end.state, f"job {self._me.job_id} completed the work"))
        elif rule := end_by_rule(self._job.spec, attempts_of(self._record.events())):
            self._close(rule)
        elif not self._job.spec.chain:
            self._close(ChainEnd(end.state, end.reason))
        else:
            self._successor.ensure(at_once=True)
        self._heartbeat.remove()
        return end.exit_status

    def _mark_done(self) -> None:
        write_marker(self._folder / DONE, Marker(chain=self._job.chain, job_id=self._me.job_id, time=time.time()))

    def _ended(self, end: WorkEnd) -> None:
        known = {(one.job_id, one.restart): one for one in attempts_of(self._record.events())}
        if (mine := known.get((self._me.job_id, self._me.restart))) is not None and mine.ended is not None:
            return
        print_line(f"{end.state}: {end.reason}")
        self._record.append(
            ChainEventKind.ENDED,
            self._me.job_id,
            self._me.restart,
            node=self._me.node,
            state=end.state,
            reason=end.reason,
        )

    def _close(self, end: ChainEnd) -> None:
        if end_of(self._record.events()) is None:
            print_line(f"the chain has ended: {end.state}, {end.reason}")
            self._record.append(
                ChainEventKind.CLOSED, self._me.job_id, self._me.restart, state=end.state, reason=end.reason
            )
        self._successor.cancel()


def print_line(message: str) -> None:
    """Print a line to the job's log."""
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] rollyard: {message}", flush=True)


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    """Run the job in whose batch script this is called. Returns its exit status."""
    signals = JobSignals()
    if len(arguments) != 3 or "SLURM_JOB_ID" not in environment:
        print("usage, within a SLURM job: python -m ...slurm.job_runner FOLDER POSITION CHAIN", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    restart = environment.get("SLURM_RESTART_COUNT", "0")
    me = RunningJob(environment["SLURM_JOB_ID"], int(restart), int(arguments[1]), socket.gethostname())
    me = me._replace(node=environment.get("SLURMD_NODENAME", me.node))
    try:
        job = read_job(folder)
        if job.chain != arguments[2]:
            print_line("the folder has been submitted again since; this job of the earlier chain ends")
            return EXIT_ENDED
        return JobRunner(folder, job, me, environment, signals).run()
    except RollyardError as error:
        print_line(f"FAILED: {error}")
        return EXIT_ENDED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
