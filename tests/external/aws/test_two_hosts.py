"""A job on two hosts, simulated by network namespaces, with real Ray. Needs root and `ip`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.external.aws.account import TAG, Account, running_account
from tests.external.aws.test_jobs import FAST, last_job
from tests.support.machines import CAN_SIMULATE, GATEWAY, simulated_machines

pytestmark = pytest.mark.skipif(not CAN_SIMULATE, reason="making network namespaces needs root and iproute2")
SMALL = ("--num-cpus=1", "--object-store-memory=78643200", "--min-worker-port=0", "--max-worker-port=0")
SUBMIT = ("configs/small.yaml", "--entrypoint", "train.py", "--image-tag", TAG, "--instance-count", "2")


@pytest.fixture
def two_hosts(tmp_path: Path, project: Path) -> Iterator[Account]:
    """An account whose jobs run on algo-1 and algo-2, each in its own namespace."""
    short = tempfile.mkdtemp(prefix="r", dir="/tmp")  # paths of Ray's sockets are limited to 107 characters
    with (project / "sagemaker.yaml").open("a") as settings:
        settings.write(f"environment: {{RAY_TMPDIR: {short}}}\n")
    try:
        with simulated_machines("aw") as machines:
            addresses = {f"algo-{number}": address for number, address in enumerate(machines.prefixes, start=1)}
            hosts = {name: machines.prefixes[address] for name, address in addresses.items()}
            with (
                machines.host_names(addresses),
                machines.inside_bridge(),
                running_account(tmp_path, GATEWAY, hosts=hosts) as account,
            ):
                account.prepare()
                yield account
    finally:
        shutil.rmtree(short, ignore_errors=True)


def test_a_job_on_two_hosts_is_one_ray_cluster_and_both_hosts_end(two_hosts: Account, project: Path) -> None:
    config = "model:\n  path: Qwen/Qwen3-1.7B\ntraining: {steps: 2, ray: 2}\n"
    (project / "configs/small.yaml").write_text(config)
    two_hosts.put("models/Qwen3-1.7B/config.json", b"{}")
    ray_args = [f"--ray-arg={argument}" for argument in SMALL]
    done = two_hosts.ng_submit(project, *SUBMIT, *ray_args, "--wait", *FAST, "--description", "two hosts")
    assert done.returncode == 0, done.stdout + done.stderr
    job = last_job(project)
    assert "10.77.0.1:6379" in two_hosts.output(job, "algo-1")
    assert "[program] nodes 10.77.0.1 10.77.0.2" in two_hosts.output(job, "algo-1")
    ended = two_hosts.output(job, "algo-2")
    assert "head algo-1" in ended and "status 0" in ended
    for host in ("algo-1", "algo-2"):  # the program on any node finds the model at the same place
        assert "model Qwen/Qwen3-1.7B: " in two_hosts.output(job, host)
    run = f"small_{job.removeprefix('annotations-adhoc-')}"
    keys = two_hosts.keys(f"checkpoints/{job}/")
    assert {f"{run}_step1/COMPLETE.json", f"{run}_step2/COMPLETE.json", "traces/trace.jsonl"} <= set(keys)
    assert "hosts/algo-2/logs/ray.log" in keys
    assert "two hosts" in (project / "docs/job_log.md").read_text()
