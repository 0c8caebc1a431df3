"""A node that is lost with its processes."""

from __future__ import annotations

import contextlib
import os
import signal

from rollyard.launchers.slurm.job_types import JobState
from tests.external.slurm.cluster import Cluster
from tests.external.slurm.launched import Launcher
from tests.support.processes import parent_of
from tests.support.waiting import eventually


def test_a_job_on_a_lost_node_continues_on_another_without_counting(launcher: Launcher, cluster: Cluster) -> None:
    job = launcher.submit(
        "if START == 1: time.sleep(600)", max_retries=0, gpus_per_node=8, sbatch_args=("--exclude=n1",)
    )
    runner = parent_of(job.until_running())
    os.kill(cluster.pid("slurmd-n2"), signal.SIGKILL)
    for pid in (parent_of(runner), runner):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    cluster.client("scontrol", "update", "nodename=n2", "state=down", "reason=lost")
    try:
        eventually("the job waits again", lambda: job.queued()[0].state == JobState.PENDING)
        cluster.client("scontrol", "update", f"jobid={job.job.job_id}", "excnodelist=", "starttime=now")
        assert job.until_over() == JobState.COMPLETED
        assert job.ends() == [JobState.REQUEUED, JobState.COMPLETED]
        assert [attempt.node for attempt in job.attempts()] == ["n2", "n1"]
    finally:
        cluster.start_node("n2")
        eventually("the node's return", lambda: "n2" in cluster.idle_nodes())
