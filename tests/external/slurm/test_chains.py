"""Chains: what continues, what ends, and that nothing is left in the queue."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from rollyard.launchers.slurm.job import JobState
from rollyard.launchers.slurm.scheduler import DONE
from tests.external.slurm.cluster import Cluster
from tests.external.slurm.launched import Launched, Launcher
from tests.support.processes import alive, parent_of
from tests.support.waiting import eventually

WAIT_ONCE = "if START == 1: time.sleep(600)"


@pytest.mark.smoke
def test_completed_work_removes_the_queued_successor(launcher: Launcher) -> None:
    job = launcher.submit("while not started.with_name('may_end').exists(): time.sleep(0.1)")
    job.until_running()
    assert [one.state for one in job.queued()] == [JobState.RUNNING, JobState.PENDING]
    (job.folder / "may_end").touch()
    assert job.until_over() == JobState.COMPLETED
    assert (job.folder / DONE).exists()
    assert len(job.attempts()) == 1


def test_failures_are_tried_again_up_to_max_retries_and_their_last_lines_are_kept(launcher: Launcher) -> None:
    job = launcher.submit("print('DIED', START); sys.exit(3)", max_retries=1)
    assert job.until_over() == JobState.FAILED
    assert job.ends() == [JobState.FAILED] * 2
    for number, attempt in enumerate(job.attempts(), start=1):
        assert "status 3" in str(attempt.reason) and str(attempt.reason).endswith(f"DIED {number}")
    absent = launcher.spec("pass", max_retries=0).model_copy(update={"command": ("/no/such/program",)})
    job = launcher.submit_spec(absent)
    assert job.until_over() == JobState.FAILED
    assert "/no/such/program" in str(job.attempts()[0].reason)


def test_kill_9_of_the_runner_ends_its_command_and_the_chain_continues(launcher: Launcher) -> None:
    job = launcher.submit(WAIT_ONCE)
    command = job.until_running()
    os.kill(parent_of(command), signal.SIGKILL)
    assert job.until_over() == JobState.COMPLETED
    assert not alive(command)
    assert job.ends() == [JobState.FAILED, JobState.COMPLETED]


@pytest.mark.parametrize("how", ["running", "stopped"])
def test_scancel_of_the_job_ends_the_chain(launcher: Launcher, cluster: Cluster, how: str) -> None:
    job = launcher.submit("time.sleep(600)")
    runner = parent_of(job.until_running())
    if how == "stopped":
        os.kill(runner, signal.SIGSTOP)  # it cannot react, and so record anything, before SLURM kills it
    cluster.client("scancel", job.job.job_id)
    # SLURM sends SIGCONT before SIGTERM, so stop it again until SIGKILL comes.
    while how == "stopped" and alive(runner):
        with contextlib.suppress(ProcessLookupError):
            os.kill(runner, signal.SIGSTOP)
    assert job.until_over() == JobState.CANCELLED
    assert job.ends() == [JobState.CANCELLED]


def test_cancel_removes_the_job_and_its_successor(launcher: Launcher) -> None:
    running, other = launcher.submit("time.sleep(600)"), launcher.submit("time.sleep(600)")
    waiting = launcher.submit("pass", sbatch_args=("--hold",))
    running.until_running()
    other.until_running()
    launcher.scheduler.cancel([running.job, waiting.job])
    for job in (running, waiting):
        assert job.until_over() == JobState.CANCELLED
    assert other.state() == JobState.RUNNING
    launcher.scheduler.cancel([other.job])
    assert other.until_over() == JobState.CANCELLED


def test_a_requeued_job_is_a_further_attempt_that_does_not_count(launcher: Launcher, cluster: Cluster) -> None:
    job = launcher.submit(WAIT_ONCE, max_retries=0)
    job.until_running()
    cluster.client("scontrol", "requeue", job.job.job_id)
    eventually("the job waits again", lambda: job.queued()[0].state == JobState.PENDING)
    eventually("an accepted start time", lambda: starts_now(cluster, job))
    job.until_running(2)
    assert job.until_over() == JobState.COMPLETED
    assert job.ends() == [JobState.REQUEUED, JobState.COMPLETED]
    # On a busy machine, SLURM may release the successor before it has put the job back into the queue.
    assert [attempt.restart for attempt in job.attempts()] in ([0, 1], [0, 0])


def test_preemption_does_not_count(launcher: Launcher, cluster: Cluster) -> None:
    on_n2 = {"gpus_per_node": 8, "sbatch_args": ("--nodelist=n2",)}
    job = launcher.submit(WAIT_ONCE, max_retries=0, **on_n2)
    job.until_running()
    urgent = launcher.submit("pass", partition="urgent", **on_n2)
    assert urgent.until_over() == JobState.COMPLETED
    eventually("an accepted start time", lambda: starts_now(cluster, job))
    assert job.until_over() == JobState.COMPLETED
    # On a busy machine, SLURM has put the job back into the queue before the runner can ask why.
    assert job.ends() in ([JobState.PREEMPTED, JobState.COMPLETED], [JobState.REQUEUED, JobState.COMPLETED])


def starts_now(cluster: Cluster, job: Launched) -> bool:
    """SLURM delays a requeued job by two minutes. Returns whether it accepted an earlier start."""
    if [one.state for one in job.queued()][:1] == [JobState.RUNNING] and len(job.attempts()) > 1:
        return True
    cluster.client("scontrol", "update", f"jobid={job.job.job_id}", "starttime=now")
    return True


def test_a_drained_job_continues_in_its_successor_and_does_not_count(launcher: Launcher) -> None:
    program = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\nif START == 1: time.sleep(600)"
    job = launcher.submit(program, max_retries=0)
    os.kill(parent_of(job.until_running()), signal.SIGTERM)
    assert job.until_over() == JobState.COMPLETED
    assert job.ends() == [JobState.DRAINED, JobState.COMPLETED]
