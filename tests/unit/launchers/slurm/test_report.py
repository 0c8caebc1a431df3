"""What `status` and `collect` show."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from rollyard.launchers.slurm.job import SUBMISSION_FILE, JobState
from rollyard.launchers.slurm.launch import SlurmLaunch, find_launch
from rollyard.launchers.slurm.report import NOT_SUBMITTED, launch_status, sweep_table, write_table
from rollyard.launchers.slurm.scheduler import JobAttempt
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from tests.support.launches import MODEL, LaunchSite
from tests.support.rollout_files import write, write_manifest


@pytest.fixture
def site(tmp_path: Path) -> LaunchSite:
    site = LaunchSite(tmp_path)
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8, 1.0]\ndata.dataset_name: ['a | b.jsonl']\n")
    site.launch("--sweep", str(tmp_path / "sweep.yaml"), MODEL)
    return site


@pytest.fixture
def launch(site: LaunchSite) -> SlurmLaunch:
    return find_launch(site.log, site.folders[0])


def write_rollouts(output: Path, rewards: list[float], tasks: int, repeats: int, first: int = 0) -> None:
    rows = [
        {
            "_ng_task_index": number // repeats,
            "_ng_rollout_index": number % repeats,
            "reward": reward,
            "response": {"output": []},
            "agent_ref": {"name": "agent"},
        }
        for number, reward in enumerate(rewards, first)
    ]
    write(output, rows)
    write_manifest(output, tasks, repeats)


def write_shards(run: Path, rewards: list[float], tasks: int) -> None:
    """Write the rollouts of the first tasks to one shard each, as of jobs that were killed."""
    for number, reward in enumerate(rewards):
        shard = RolloutPaths(Shard(number + 1, len(rewards)).output(run / "rollouts.jsonl"))
        write_rollouts(shard.output, [reward], tasks, 1, first=number)
        counts = {"measured": 1, "expected": tasks, "failed": 0, "failed_attempts": 0, "in_flight": 0}
        scores = dict.fromkeys(("successes", "mean_reward", "reward_stderr", "eta_s"))
        rest = {"rollouts_per_s": 1.0, "updated": 0.0, "pid": 1, "failures": {}, "state": "running"}
        shard.status.write_text(json.dumps({**counts, **scores, **rest}))


def test_the_status_names_state_attempts_and_the_last_error(site: LaunchSite, launch: SlurmLaunch) -> None:
    site.scheduler.state |= {"101": JobState.COMPLETED, "102": JobState.RUNNING, "103": JobState.OUT_OF_MEMORY}
    site.scheduler.failures["103"] = [
        JobAttempt(job_id="103", started=1.0, ended=2.0, state=JobState.TIMEOUT),
        JobAttempt(job_id="104", started=3.0, ended=4.0, state=JobState.OUT_OF_MEMORY, reason="killed"),
    ]
    found = launch_status(launch, site.scheduler)
    assert [one.states for one in found.combinations] == ["COMPLETED", "RUNNING", "OUT_OF_MEMORY"]
    assert (found.combinations[2].attempts, found.combinations[2].error) == (2, "OUT_OF_MEMORY: killed")
    assert found.combinations[1].parameters["generation.temperature"] == 0.8
    assert found.summary.startswith("3 combinations, 0 complete; ")
    assert found.summary.endswith(": COMPLETED 1, RUNNING 1, OUT_OF_MEMORY 1")
    for spec in site.scheduler.specs:
        (spec.folder / SUBMISSION_FILE).unlink()
    assert {one.states for one in launch_status(launch, site.scheduler).combinations} == {NOT_SUBMITTED}


def test_the_table_has_parameters_coverage_and_metrics_with_intervals(launch: SlurmLaunch, tmp_path: Path) -> None:
    outputs = [one.run / "rollouts.jsonl" for one in launch.combinations]
    write_rollouts(outputs[0], [1, 0, 1, 1, 0, 0], tasks=3, repeats=2)
    write_rollouts(outputs[1], [1, 1, 1, 0], tasks=3, repeats=2)
    table = sweep_table(launch)
    assert table.summary.startswith("2 of 3 ") and ": eval_sweep_2, eval_sweep_3" in table.summary
    cells = [dict(zip(table.titles, table.cells(row), strict=True)) for row in table.rows]
    assert cells[0]["generation.temperature"] == "0.6"
    assert cells[0]["solve_rate"].startswith("0.500 [") and cells[0]["pass@2"].startswith("0.667 [")
    assert [one["rollouts"] for one in cells] == ["6 of 6", "4 of 6 (incomplete)", "0 of ? (incomplete)"]
    assert cells[2]["solve_rate"] == "-"
    markdown, numbers, data = write_table(table, tmp_path / "out")
    assert "| eval_sweep_1 | 0.6 | a \\| b.jsonl | 6 of 6 |" in markdown.read_text()
    with numbers.open(newline="") as file:
        rows = [(row["complete"], row["reward"]) for row in csv.DictReader(file)]
    assert rows == [("true", "0.5"), ("false", "0.75"), ("false", "")]
    found = json.loads(data.read_text())["rows"][0]
    assert found["parameters"] == {"generation.temperature": 0.6, "data.dataset_name": "a | b.jsonl"}
    assert found["headline"]["metrics"]["reward"]["mean"] == 0.5


def test_rows_in_the_shards_of_single_jobs_are_in_the_status_and_in_the_table(
    site: LaunchSite, launch: SlurmLaunch
) -> None:
    write_shards(launch.combinations[0].run, [1, 0, 1, 1], tasks=6)
    for _ in range(2):
        found = launch_status(launch, site.scheduler).combinations[0]
        assert (found.rows, found.is_complete) == ("4 of 6", False)
        row = sweep_table(launch).rows[0]
        assert (row.coverage, row.headline.metrics["reward"].mean) == ("4 of 6 (incomplete)", 0.75)


def test_a_combination_is_complete_only_when_its_rows_are_merged(site: LaunchSite, launch: SlurmLaunch) -> None:
    write_shards(launch.combinations[0].run, [1, 0], tasks=2)
    assert not launch_status(launch, site.scheduler).combinations[0].is_complete
    assert sweep_table(launch).rows[0].coverage == "2 of 2"
    assert launch_status(launch, site.scheduler).combinations[0].is_complete


def test_a_broken_rollout_file_does_not_hide_the_others(launch: SlurmLaunch) -> None:
    outputs = [one.run / "rollouts.jsonl" for one in launch.combinations]
    write_rollouts(outputs[0], [1], tasks=1, repeats=1)
    write(outputs[1], [], tail=b"no json\n{}\n")
    table = sweep_table(launch)
    assert table.rows[0].is_complete and table.rows[1].problem
