"""One job on two nodes: Ray starts on both, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.launchers.slurm.job_types import JobState
from tests.external.slurm.launched import RAY, Launcher
from tests.support.processes import processes_with
from tests.support.waiting import eventually

FAILS_ON_N2 = """#!/bin/sh
[ $SLURMD_NODENAME = n1 ] && echo Ray runtime started && exec sleep 600
echo no memory
exit 1
"""


@pytest.mark.skipif(RAY is None, reason="Ray is not installed: make .venv-external/.ready")
def test_the_command_gets_the_address_of_a_ray_cluster_on_both_nodes(launcher: Launcher) -> None:
    job = launcher.slow["ray"]
    assert job.until_over() == JobState.COMPLETED, job.log()
    assert "NODES 2 4.0 +ray_head_node_address=127.0.0.1:" in job.log()
    eventually("the end of Ray", lambda: not list(processes_with("SLURM_JOB_ID", job.job.job_id)))


def test_a_node_on_which_ray_does_not_start_is_a_failure_with_a_reason(launcher: Launcher, tmp_path: Path) -> None:
    ray = tmp_path / "ray"
    ray.write_text(FAILS_ON_N2)
    ray.chmod(0o755)
    job = launcher.submit_spec(launcher.spec("pass", nodes=2, max_retries=0), tmp_path)
    assert job.until_over() == JobState.FAILED
    reason = str(job.attempts()[0].reason)
    assert "n2" in reason and "no memory" in reason
    eventually("the end of the other node", lambda: not list(processes_with("SLURM_JOB_ID", job.job.job_id)))
