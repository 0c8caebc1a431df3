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
from rollyard.records.rollout_keys import Shard
from rollyard.records.rollout_paths import RolloutPaths
from tests.support.launches import MODEL, LaunchSite
from tests.support.rollout_files import write, write_manifest


@pytest.fixture
def site(tmp_path: Path) -> LaunchSite:
    site = LaunchSite(tmp_path)
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8, 1.0]\ndata.dataset_name: ['a | b.jsonl']\n")
    site.launch("--sweep", str(tmp_path / "sweep.yaml"), MODEL)
    return site


def launch_of(site: LaunchSite) -> SlurmLaunch:
    return find_launch(site.log, site.folders[0])


def write_rollouts(run: Path, rewards: list[float], tasks: int, repeats: int) -> None:
    run.mkdir()
    rows = [
        {"_ng_task_index": number // repeats, "_ng_rollout_index": number % repeats, "reward": reward}
        for number, reward in enumerate(rewards)
    ]
    lines = [json.dumps(row | {"response": {"output": []}, "agent_ref": {"name": "agent"}}) for row in rows]
    (run / "rollouts.jsonl").write_text("".join(f"{line}\n" for line in lines))
    manifest = {"identity": {"rows": tasks, "num_repeats": repeats}, "versions": {}, "created": 0.0}
    (run / "rollouts_manifest.json").write_text(json.dumps(manifest))


def test_the_status_names_state_attempts_and_the_last_error(site: LaunchSite) -> None:
    site.scheduler.state |= {"101": JobState.COMPLETED, "102": JobState.RUNNING, "103": JobState.OUT_OF_MEMORY}
    site.scheduler.failures["103"] = [
        JobAttempt(job_id="103", started=1.0, ended=2.0, state=JobState.TIMEOUT),
        JobAttempt(job_id="104", started=3.0, ended=4.0, state=JobState.OUT_OF_MEMORY, reason="killed"),
    ]
    found = launch_status(launch_of(site), site.scheduler)
    assert [one.states for one in found.combinations] == ["COMPLETED", "RUNNING", "OUT_OF_MEMORY"]
    assert (found.combinations[2].attempts, found.combinations[2].error) == (2, "OUT_OF_MEMORY: killed")
    assert found.combinations[1].parameters["generation.temperature"] == 0.8
    assert found.summary.startswith("3 combinations, 0 complete; ")
    assert found.summary.endswith(": COMPLETED 1, RUNNING 1, OUT_OF_MEMORY 1")


def test_a_job_that_slurm_never_got_is_shown(site: LaunchSite) -> None:
    for spec in site.scheduler.specs:
        (spec.folder / SUBMISSION_FILE).unlink()
    assert {one.states for one in launch_status(launch_of(site), site.scheduler).combinations} == {NOT_SUBMITTED}


def test_the_table_has_parameters_coverage_and_metrics_with_intervals(site: LaunchSite, tmp_path: Path) -> None:
    launch = launch_of(site)
    write_rollouts(launch.combinations[0].run, [1, 0, 1, 1, 0, 0], tasks=3, repeats=2)
    write_rollouts(launch.combinations[1].run, [1, 1, 1, 0], tasks=3, repeats=2)
    table = sweep_table(launch)
    assert table.summary.startswith("2 of 3 ") and ": eval_sweep_2, eval_sweep_3" in table.summary
    first = dict(zip(table.titles, table.cells(table.rows[0]), strict=True))
    assert first["generation.temperature"] == "0.6"
    assert first["rollouts"] == "6 of 6"
    assert first["solve_rate"].startswith("0.500 [") and first["pass@2"].startswith("0.667 [")
    cells = [dict(zip(table.titles, table.cells(row), strict=True)) for row in table.rows]
    assert [one["rollouts"] for one in cells[1:]] == ["4 of 6 (incomplete)", "0 of ? (incomplete)"]
    assert cells[2]["solve_rate"] == "-"


def test_the_table_is_written_as_markdown_csv_and_json(site: LaunchSite, tmp_path: Path) -> None:
    launch = launch_of(site)
    write_rollouts(launch.combinations[0].run, [1, 0], tasks=2, repeats=1)
    markdown, table, data = write_table(sweep_table(launch), tmp_path / "out")
    assert "| eval_sweep_1 | 0.6 | a \\| b.jsonl | 2 of 2 |" in markdown.read_text()
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["complete"], rows[0]["reward"], rows[2]["complete"], rows[2]["reward"]) == (
        "true",
        "0.5",
        "false",
        "",
    )
    found = json.loads(data.read_text())
    assert found["rows"][0]["parameters"] == {"generation.temperature": 0.6, "data.dataset_name": "a | b.jsonl"}
    assert found["rows"][0]["headline"]["metrics"]["reward"]["mean"] == 0.5


def write_status(path: Path, measured: int, expected: int) -> None:
    counts = {"measured": measured, "expected": expected, "failed": 0, "failed_attempts": 0, "in_flight": 0}
    scores = dict.fromkeys(("successes", "mean_reward", "reward_stderr", "eta_s"))
    rest = {"rollouts_per_s": 1.0, "updated": 0.0, "pid": 1, "failures": {}, "state": "running"}
    path.write_text(json.dumps({**counts, **scores, **rest}))


def write_shards(run: Path, rewards: list[float], tasks: int) -> None:
    """Write the rollouts of the first tasks to one shard each, as of jobs that were killed."""
    for number, reward in enumerate(rewards, 1):
        shard = RolloutPaths(Shard(number, len(rewards)).output(run / "rollouts.jsonl"))
        keys = {"_ng_task_index": number - 1, "_ng_rollout_index": 0}
        write(shard.output, [keys | {"response": {"output": []}, "agent_ref": {"name": "agent"}, "reward": reward}])
        write_manifest(shard.output, tasks, 1)
        write_status(shard.status, 1, tasks)


def test_rows_in_the_shards_of_single_jobs_are_in_the_status_and_in_the_table(site: LaunchSite) -> None:
    launch = launch_of(site)
    write_shards(launch.combinations[0].run, [1, 0, 1, 1], tasks=6)
    for _ in range(2):
        found = launch_status(launch, site.scheduler).combinations[0]
        assert (found.rows, found.is_complete) == ("4 of 6", False)
        table = sweep_table(launch)
        assert table.rows[0].coverage == "4 of 6 (incomplete)"
        assert table.rows[0].headline.metrics["reward"].mean == 0.75


def test_a_combination_is_complete_only_when_its_rows_are_merged(site: LaunchSite) -> None:
    launch = launch_of(site)
    write_shards(launch.combinations[0].run, [1, 0], tasks=2)
    assert not launch_status(launch, site.scheduler).combinations[0].is_complete
    assert sweep_table(launch).rows[0].coverage == "2 of 2"
    assert launch_status(launch, site.scheduler).combinations[0].is_complete


def test_a_broken_rollout_file_does_not_hide_the_others(site: LaunchSite) -> None:
    launch = launch_of(site)
    write_rollouts(launch.combinations[0].run, [1], tasks=1, repeats=1)
    launch.combinations[1].run.mkdir()
    (launch.combinations[1].run / "rollouts.jsonl").write_text("no json\n{}\n")
    table = sweep_table(launch)
    assert table.rows[0].is_complete
    assert table.rows[1].problem
