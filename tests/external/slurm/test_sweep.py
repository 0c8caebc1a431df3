"""A sweep on a real SLURM: one conversion, killed jobs, a changing number of jobs, one table.

Everything is real but the engine, which answers without a model, after it has checked the converted checkpoint.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import random
import time
from pathlib import Path

import pytest

from rollyard.launchers.slurm.launch import SlurmLaunch, submitted_jobs
from rollyard.services.rollouts.shards import shard_files
from tests.external.slurm.cluster import Cluster
from tests.external.slurm.sweep_site import COMBINATIONS, SweepSite
from tests.support.processes import processes_with
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed: make test-slurm")

REPEATS = 80
ROWS = 5 * REPEATS


@pytest.fixture(scope="module")
def site(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> SweepSite:
    from tests.external.conversion.dcp_files import save

    root = tmp_path_factory.mktemp("site")
    save(root, "--world", "1")
    return SweepSite(root, cluster)


def kill_half(site: SweepSite, launch: SlurmLaunch) -> int:
    """Kill half of the evaluations once, at a random instant of their first jobs. Return how many were killed."""
    rng = random.Random("half of the jobs")
    victims = rng.sample(launch.combinations, COMBINATIONS // 2)
    ages = {f"{one.name}/job-1": rng.uniform(0.0, 5.0) for one in victims}
    seen: dict[str, float] = {}
    killed: list[str] = []

    def done() -> bool:
        for name, pid in site.runners(launch).items():
            age = time.monotonic() - seen.setdefault(name, time.monotonic())
            if name not in killed and age >= ages.get(name, math.inf):
                site.kill(pid, by_slurm=len(killed) % 2 == 1)
                killed.append(name)
        return len(killed) == len(ages) or not site.queued(launch)

    eventually("half of the jobs are killed, or all have ended", done)
    return len(killed)


def measured(site: SweepSite, launch: SlurmLaunch) -> int:
    return int(site.status(launch)["combinations"][0]["measured"] or 0)


def test_a_sweep_with_half_of_its_jobs_killed_is_complete(site: SweepSite) -> None:
    started = site.launch("--sweep", "eval_sweep.yaml", *site.checkpoint, "--gpus", "4")
    assert started.status == 0 and f"{COMBINATIONS + 1} of {COMBINATIONS + 1} jobs" in started.out, started.err
    launch = site.launched("eval")
    killed = kill_half(site, launch)
    site.until_over(launch)
    assert killed >= COMBINATIONS / 4
    # Jobs that SLURM has cancelled, or that were killed before they had queued a successor, are replaced by hand.
    again = site.launch("resume", str(launch.folder))
    assert again.status == 0, again.err
    site.until_over(launch)

    table = site.launch("collect", str(launch.folder))
    assert table.status == 0 and f"{COMBINATIONS} of {COMBINATIONS} combinations" in table.out, table.out
    rows = list(csv.DictReader((launch.folder / "results.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == [f"eval_sweep_{number}" for number in range(1, COMBINATIONS + 1)]
    rewards = {t: [float(row["reward"]) for row in rows if row["generation.temperature"] == t] for t in ("0.6", "1.0")}
    assert sum(rewards["0.6"]) > sum(rewards["1.0"])
    for row, keys in zip(rows, site.rollouts(launch).values(), strict=True):
        expected = {(task, repeat) for task in range(5) for repeat in range(int(row["eval.num_tests_per_prompt"]))}
        assert set(keys) == expected and set(keys.values()) == {1}

    conversions = [path for path in (site.log / "nemo-rl/hf_eval_checkpoints").iterdir() if path.name[0] != "."]
    assert len(conversions) == 1 and not conversions[0].suffix
    # MinJobAge is 15 s: SLURM has forgotten the first jobs, and accounting is off.
    known = submitted_jobs(launch)
    first = min(known.values(), key=lambda job: int(job.job_id))
    assert first.job_id not in site.cluster.client("squeue", "-h", "-t", "all", "-o", "%i").split()
    found = site.status(launch)
    assert [job["state"] for job in found["conversion"]] == ["COMPLETED"]
    assert all(one["is_complete"] for one in found["combinations"])
    # A job that is cancelled after its last rollout, but before its end, needs no successor.
    assert {one["jobs"][-1]["state"] for one in found["combinations"]} <= {"COMPLETED", "CANCELLED"}


def test_four_jobs_become_one_and_then_three(site: SweepSite) -> None:
    site.set_latency(20.0)  # nothing may be complete before all jobs have run
    more = (f"eval.num_tests_per_prompt={REPEATS}", "--jobname", "reshaped", "--gpus", "2")
    started = site.launch("--jobs", "4", *site.checkpoint, *more)
    assert started.status == 0, started.err
    launch = site.launched("reshaped")
    output = launch.combinations[0].run / "rollouts.jsonl"
    eventually("four shards", lambda: len(shard_files(output)) == 4)
    for number, (_, pid) in enumerate(sorted(site.runners(launch).items())[:2]):
        site.kill(pid, by_slurm=number == 1)
    assert site.launch("resume", "--jobs", "1", str(launch.folder)).status == 0
    eventually("one job", lambda: len(site.runners(launch)) == 1)
    before = measured(site, launch)
    site.set_latency(0.5)
    eventually("one job goes on", lambda: measured(site, launch) >= before + 8)
    site.set_latency(20.0)

    table = site.launch("collect", str(launch.folder))
    (row,) = json.loads((launch.folder / "results.json").read_text())["rows"]
    assert table.status == 1 and 0 < row["headline"]["measured"] < ROWS
    assert row["headline"]["metrics"]["reward"]["mean"] > 0

    assert site.launch("resume", "--jobs", "3", str(launch.folder)).status == 0
    eventually("three jobs", lambda: len(site.runners(launch)) == 3)
    site.set_latency(0.01)
    site.until_over(launch)
    assert site.launch("collect", str(launch.folder)).status == 0
    (keys,) = site.rollouts(launch).values()
    assert set(keys) == {(task, repeat) for task in range(5) for repeat in range(REPEATS)} and set(keys.values()) == {1}
    eventually("no process is left", lambda: not list(processes_with("LOG", str(site.log))))


def test_cancel_ends_running_waiting_and_conversion_jobs(site: SweepSite) -> None:
    site.set_latency(60.0)
    small = ("eval.num_tests_per_prompt=8", "--gpus", "8", "--jobname")
    assert site.launch("--jobs", "3", *site.checkpoint, *small, "running").status == 0  # two of three fit
    assert site.launch(*site.checkpoint, "--force-conversion", *small, "converting").status == 0
    running, converting = site.launched("running"), site.launched("converting")
    eventually("two running jobs with successors", lambda: len(site.queued(running)) >= 5)
    eventually("the conversion", lambda: any("RUNNING" in line for line in site.queued(converting)))
    for launch in (converting, running):  # the conversion first, because it ends by itself
        assert site.launch("cancel", str(launch.folder)).status == 0
        site.until_over(launch)
        found = site.status(launch)
        assert {job["state"] for one in found["combinations"] for job in one["jobs"]} == {"CANCELLED"}
    assert [job["state"] for job in site.status(converting)["conversion"]] == ["CANCELLED"]
    eventually("no process is left", lambda: not list(processes_with("LOG", str(site.log))))
    assert not list(Path(converting.folder).parent.parent.glob("hf_eval_checkpoints/*-2"))
