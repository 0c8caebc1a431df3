"""Ends that take up to a minute: time limits, and jobs that SLURM has forgotten. Submitted before the first test."""

from __future__ import annotations

import pytest

from rollyard.launchers.slurm.job_types import JobState
from tests.external.slurm.cluster import Cluster
from tests.external.slurm.launched import Launcher
from tests.support.waiting import eventually


def test_a_job_at_its_time_limit_continues_without_counting(launcher: Launcher) -> None:
    job = launcher.slow["time limit"]
    job.until_running(2)
    assert job.until_over() == JobState.COMPLETED
    assert job.ends() == [JobState.TIMEOUT, JobState.COMPLETED]


@pytest.mark.parametrize("by", ["SLURM", "the runner"])
def test_the_command_is_told_to_stop_before_the_time_limit(launcher: Launcher, by: str) -> None:
    job = launcher.slow[f"told by {by}"]
    assert job.until_over() == JobState.COMPLETED
    assert job.ends() == [JobState.DRAINED, JobState.COMPLETED]
    assert "time limit" in str(job.attempts()[0].reason)


def test_a_killed_job_that_slurm_has_forgotten_is_unknown(launcher: Launcher) -> None:
    job = launcher.slow["killed"]
    eventually("its purge", lambda: launcher.client.standing(job.job.job_id) is None)
    assert job.state() == JobState.UNKNOWN
    (attempt,) = job.attempts()
    assert attempt.state == JobState.UNKNOWN


def test_a_successor_of_a_forgotten_job_counts_its_end_as_a_failure(launcher: Launcher, cluster: Cluster) -> None:
    job = launcher.slow["forgotten"]
    (successor,) = job.queued()
    eventually("its purge", lambda: launcher.client.standing(job.job.job_id) is None)
    cluster.client("scontrol", "release", successor.job_id)
    assert job.until_over() == JobState.UNKNOWN
    assert job.ends() == [JobState.UNKNOWN]
