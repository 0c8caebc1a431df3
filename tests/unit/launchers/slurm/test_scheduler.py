"""When a chain goes on, what its record survives, and chains of jobs in a simulated SLURM that kills them at random."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.slurm import job_runner
from rollyard.launchers.slurm.client import QueuedJob, SlurmError, SlurmTimeoutError, Standing
from rollyard.launchers.slurm.job import ChainJob, JobSpec, JobState
from rollyard.launchers.slurm.job_runner import JobRunner, RunningJob, WorkEnd
from rollyard.launchers.slurm.scheduler import (
    CHAIN_FILE,
    DONE,
    ChainEnd,
    ChainEventKind,
    ChainRecord,
    JobAttempt,
    attempts_of,
    end_by_rule,
    end_of,
    read_marker,
)


def end(states: list[JobState], **settings: Any) -> ChainEnd | None:
    attempts = [
        JobAttempt(job_id=str(number), started=0.0, ended=10.0, state=state, reason="a reason")
        for number, state in enumerate(states, 1)
    ]
    return end_by_rule(JobSpec(name="one", folder=Path("/jobs/one"), command=("ng_eval",), **settings), attempts)


@pytest.mark.parametrize("state", [state for state in JobState if not state.alive])
def test_each_end_continues_counts_or_ends_the_chain(state: JobState) -> None:
    found = end([state], max_retries=0)
    ends = state in (JobState.CANCELLED, JobState.COMPLETED)
    assert (found is not None and found.state == state) if ends or state.counts else found is None
    if found is not None and not ends:
        assert "max_retries is 0;" in found.reason and found.reason.endswith(f" 1: {state}: a reason")


def test_failures_count_over_the_whole_chain_which_has_at_most_max_jobs_starts() -> None:
    states = [JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.PREEMPTED]
    assert end(states, max_retries=2) is None
    assert end([*states, JobState.FAILED], max_retries=2) is not None
    assert end([JobState.DRAINED] * 3, max_jobs=3) is not None
    assert end([JobState.DRAINED] * 3, max_jobs=4) is None


def test_unfinished_lines_and_events_of_other_chains_and_newer_versions_are_skipped(tmp_path: Path) -> None:
    record = ChainRecord(tmp_path, "c")
    ChainRecord(tmp_path, "earlier").append(ChainEventKind.CLOSED, "3", state=JobState.FAILED, reason="it failed")
    record.append(ChainEventKind.STARTED, "7", at=1.0)
    with (tmp_path / CHAIN_FILE).open("a") as file:
        file.write('{"event":"new kind","chain":"c","job_id":"7","time":1}\n[]\n{"event":"ended","chain":"c","jo')
    assert len(record.events()) == 1 and end_of(record.events()) is None
    record.append(ChainEventKind.ENDED, "7", at=2.0, state=JobState.FAILED)
    assert [event.event for event in record.events()] == [ChainEventKind.STARTED, ChainEventKind.ENDED]


CHAIN = "c"
KILLED = [JobState.TIMEOUT, JobState.NODE_FAIL, JobState.OUT_OF_MEMORY, JobState.FAILED, JobState.CANCELLED]


class Killed(BaseException):
    """kill -9 of the runner."""


@dataclass
class Job:
    position: int
    comment: str
    after: str | None
    state: JobState = JobState.PENDING
    restarts: int = 0
    purged: bool = False


class SimulatedSlurm:
    """Stands in for SlurmClient; `run` executes the jobs of the chain one after another until none is left."""

    def __init__(self, folder: Path, seed: int, faults: float) -> None:
        self.random = random.Random(seed)
        self.folder, self.faults = folder, faults
        self.jobs: dict[str, Job] = {}
        self.working: list[str] = []
        self.worked_after_end = False
        self.spec = JobSpec(name="one", folder=folder, command=("x",), max_retries=3, max_jobs=12)
        self.sbatch(["--comment=rollyard:c:1", "1", CHAIN])

    def step(self) -> None:
        if self.random.random() < self.faults / 8:
            raise Killed

    def may_fail(self, error: type[SlurmError] = SlurmError) -> None:
        self.step()
        if self.random.random() < self.faults / 4:
            raise error("refused, or no answer")

    def sbatch(self, arguments: list[str]) -> str:
        if self.jobs:
            self.may_fail()
        option = {key: value for key, _, value in (word.partition("=") for word in arguments)}
        number = str(len(self.jobs) + 1)
        after = option.get("--dependency", "").partition(":")[2] or None
        self.jobs[number] = Job(int(arguments[-2]), option["--comment"], after)
        if len(self.jobs) > 1:
            self.may_fail(SlurmTimeoutError)
        return number

    def queue(self) -> list[QueuedJob]:
        self.may_fail()
        return [QueuedJob(key, job.state, job.comment) for key, job in self.jobs.items() if not job.purged]

    def standing(self, job_id: str) -> Standing | None:
        self.may_fail()
        job = self.jobs[job_id]
        return None if job.purged else Standing(str(job.state), job.restarts, None, None, "")

    def accounted(self, job_id: str) -> JobState | None:
        return None if self.jobs[job_id].purged or self.random.random() < 0.5 else self.jobs[job_id].state

    def cancel(self, jobs: list[str]) -> None:
        self.may_fail()
        for job in jobs:
            if self.jobs[job].state == JobState.PENDING:
                self.jobs[job].state = JobState.CANCELLED

    def eligible(self) -> list[str]:
        for job in self.jobs.values():  # --kill-on-invalid-dep
            if job.state == JobState.PENDING and job.after and self.jobs[job.after].state == JobState.COMPLETED:
                job.state = JobState.CANCELLED
        waiting = [key for key, job in self.jobs.items() if job.state == JobState.PENDING]
        return [key for key in waiting if (after := self.jobs[key].after) is None or not self.jobs[after].state.alive]

    def run(self) -> None:
        for _ in range(200):
            if not (ready := self.eligible()):
                return
            self.start(self.random.choice(ready))
        raise AssertionError("the chain does not end")

    def start(self, key: str) -> None:
        job = self.jobs[key]
        job.state = JobState.RUNNING
        me = RunningJob(key, job.restarts, job.position, "n1")
        runner = JobRunner(self.folder, ChainJob(chain=CHAIN, spec=self.spec), me, {}, None)  # type: ignore[arg-type]
        runner._client = runner._successor.client = self  # type: ignore[assignment]
        try:
            status = runner.run()
            job.state = JobState.FAILED if status else JobState.COMPLETED
        except Killed:
            if key in self.working:
                self.working.remove(key)
            job.state = self.random.choice(KILLED)
            if job.state == JobState.NODE_FAIL and self.random.random() < 0.5:
                job.state, job.restarts = JobState.PENDING, job.restarts + 1
        job.purged = not job.state.alive and self.random.random() < self.faults

    def work(self, key: str) -> WorkEnd:
        self.worked_after_end |= (self.folder / DONE).exists()
        self.working.append(key)
        for other in self.eligible():  # whatever may start beside this job
            self.start(other)
        assert self.working == [key], "two jobs of one chain work at the same time"
        self.step()
        self.working.remove(key)
        state = self.random.choice([JobState.COMPLETED, JobState.FAILED, JobState.DRAINED, JobState.PREEMPTED])
        return WorkEnd(state, "", 0 if state == JobState.COMPLETED else 75 if state != JobState.FAILED else 1)


@pytest.mark.parametrize("seed", range(30))
def test_a_chain_ends_with_one_job_at_a_time_and_all_counts_right(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = SimulatedSlurm(tmp_path, seed, faults=(0.0, 0.2, 0.5)[seed % 3])

    class Work:
        def __init__(self, folder: Path, spec: JobSpec, me: RunningJob, *rest: Any) -> None:
            self.run: Callable[..., WorkEnd] = lambda each_time, *rest: (each_time(), slurm.work(me.job_id))[1]

    append = ChainRecord.append

    def interrupted_append(self: ChainRecord, *given: Any, **options: Any) -> None:
        slurm.step()
        append(self, *given, **options)
        slurm.step()

    monkeypatch.setattr(job_runner, "JobWork", Work)
    monkeypatch.setattr(ChainRecord, "append", interrupted_append)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    slurm.run()
    events = ChainRecord(tmp_path, CHAIN).events()
    attempts = attempts_of(events)
    assert not any(job.state.alive for job in slurm.jobs.values())
    assert not slurm.worked_after_end
    assert len(attempts) <= slurm.spec.max_jobs
    assert sum(attempt.state.counts for attempt in attempts) <= slurm.spec.max_retries + 1
    for attempt in attempts[:-1]:
        assert attempt.ended is not None and attempt.state not in (JobState.COMPLETED, JobState.CANCELLED)
    closed, done = end_of(events), read_marker(tmp_path / DONE, CHAIN)
    completed = closed is not None and closed.state == JobState.COMPLETED
    assert (done is not None) >= completed
    if not slurm.faults:
        assert closed is not None and completed == (done is not None)
