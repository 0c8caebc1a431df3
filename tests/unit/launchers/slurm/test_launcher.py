"""Submits, resumes, reshapes and cancels launches, with a scheduler in memory."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest

from rollyard.launchers.slurm.job import JobState, Submission, write_submission
from rollyard.launchers.slurm.launch import LaunchFolder, find_launch, submitted_jobs
from rollyard.records.errors import OperatorError, RunError
from tests.support.launches import MODEL, LaunchSite

SWEEP = ("--sweep", "sweep.yaml", MODEL)


@pytest.fixture
def site(here: Path) -> LaunchSite:
    (here / "weights").mkdir()
    (here / "config.yaml").touch()
    site = LaunchSite(here)
    site.write("sweep.yaml", "generation.temperature: [0.6, 0.8, 1.0]\n")
    return site


def submitted(site: LaunchSite, number: int = 0) -> dict[str, str]:
    found = submitted_jobs(LaunchFolder(site.folders[number]).read())
    return {name: job.job_id for name, job in found.items()}


def forget_ids(site: LaunchSite, *jobs: str) -> None:
    """What a launcher leaves that is killed while sbatch has not answered yet."""
    for spec in site.scheduler.specs:
        if site.scheduler.ids[spec.folder] in jobs:
            write_submission(spec.folder, Submission(chain="", name=spec.name, submitted=0.0))


def test_every_job_is_recorded_with_its_id_and_printed_as_a_block_in_the_original_format(site: LaunchSite) -> None:
    assert site.launch(*SWEEP) == 0
    assert list(submitted(site).values()) == ["101", "102", "103"]
    assert [spec.name for spec in site.scheduler.specs] == list(submitted(site))
    assert any(line.startswith("Submitted 3 of 3 ") for line in site.printed)
    start = site.printed.index("[eval_sweep_2]")
    block = site.printed[start - 1 : site.printed.index("[eval_sweep_3]") - 1]
    assert (block[0], *block[2:4]) == ("", "Parameters:", "  generation.temperature: 0.8")
    assert block[-3].startswith("  ng_eval /") and block[-4] == "Command:"
    assert block[-2:] == ["Submitted batch job 102", "=" * 80]


def test_a_folder_that_was_moved_is_refused(site: LaunchSite, tmp_path: Path) -> None:
    """`cancel` would find no job and report success."""
    site.launch(*SWEEP)
    moved = site.folders[0].rename(tmp_path / "moved")
    with pytest.raises(OperatorError, match=rf"{re.escape(str(moved))} was moved"):
        find_launch(tmp_path, moved)


def test_fewer_jobs_than_planned_are_a_failure_that_says_how_to_go_on(site: LaunchSite) -> None:
    """B9: a refusal of sbatch was printed, the next jobs were tried, and the exit status was 0."""
    site.scheduler.refuse_after = 1
    assert site.launch(*SWEEP) == 1
    assert any("sbatch" in line and "QOSMaxSubmitJobPerUserLimit" in line for line in site.printed)
    assert "Submitted 1 of 3 " in site.printed[-1] and "eval_sweep_2 and 1 " in site.printed[-1]
    assert f"ng_eval_launcher resume {site.folders[0]}" in site.printed[-1]
    [warning] = site.warnings
    assert warning.startswith("eval_sweep_2 ") and "QOSMaxSubmitJobPerUserLimit" in warning


@pytest.mark.parametrize("how", ["flag", "id", "folder"])
def test_a_resume_submits_only_what_is_missing(site: LaunchSite, how: str) -> None:
    """B9: nothing recorded which jobs were in."""
    site.scheduler.refuse_after = 1
    site.launch(*SWEEP)
    site.scheduler.refuse_after = None
    (folder,) = site.folders
    if how == "folder":
        assert site.launcher.resume(find_launch(site.log, folder)) == 0
    else:
        assert site.launch(*SWEEP, *(["--resume"] if how == "flag" else ["--launch-id", folder.name])) == 0
    assert site.folders == [folder]
    assert len(site.scheduler.specs) == 3 == len(submitted(site))


def test_the_same_command_after_an_incomplete_launch_does_not_submit_everything_twice(site: LaunchSite) -> None:
    site.scheduler.refuse_after = 1
    site.launch(*SWEEP)
    site.scheduler.refuse_after = None
    with pytest.raises(OperatorError, match=r"2 of its 3 jobs .*--resume"):
        site.launch(*SWEEP)
    assert site.launch(*SWEEP, "--launch-id", "other") == 0


def test_a_submission_that_was_killed_before_its_id_was_recorded_is_not_repeated(site: LaunchSite) -> None:
    site.launch(*SWEEP)
    for lost in (["101", "102", "103"], ["102", "103"], ["103"]):
        forget_ids(site, *lost)
        assert site.launch(*SWEEP, "--resume") == 0
        assert len(site.scheduler.specs) == 3
        assert list(submitted(site).values()) == ["101", "102", "103"]


def test_a_launch_id_with_other_content_is_refused(site: LaunchSite) -> None:
    site.launch(*SWEEP, "--launch-id", "mine")
    with pytest.raises(OperatorError, match="evaluates something else"):
        site.launch(*SWEEP, "--launch-id", "mine", "generation.top_p=0.5")


def test_a_folder_that_was_left_without_its_plan_is_no_launch(site: LaunchSite) -> None:
    (site.log / "nemo-rl/eval/torn").mkdir(parents=True)
    with pytest.raises(OperatorError, match="no launch in"):
        find_launch(site.log / "nemo-rl", None)
    assert site.launch(*SWEEP, "--launch-id", "torn") == 0


def test_a_second_launcher_of_the_same_launch_is_refused(site: LaunchSite) -> None:
    site.launch(*SWEEP)
    with (site.folders[0] / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another ng_eval_launcher is submitting"):
            site.launch(*SWEEP, "--resume")


def test_a_dry_run_of_a_resume_counts_only_the_missing_jobs(site: LaunchSite) -> None:
    site.scheduler.refuse_after = 2
    site.launch(*SWEEP)
    assert site.launch(*SWEEP, "--resume", "--dry") == 0
    assert " 1 job " in site.printed[-1]


def test_a_dry_run_shows_no_secret(site: LaunchSite) -> None:
    site.launch("--dry", MODEL, "+generation.api_key=sk-1")
    assert "sk-1" not in "\n".join(site.printed)


def test_a_job_that_sbatch_would_refuse_is_refused_before_anything_is_submitted(site: LaunchSite) -> None:
    with pytest.raises(OperatorError, match="drain_before_s"):
        site.launch(*SWEEP, "--time", "1", "--drain-before", "90")
    assert not site.log.exists()


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.COMPLETED, JobState.FAILED])
def test_evaluations_wait_for_a_conversion_that_is_not_done_and_a_failed_one_is_repeated(
    site: LaunchSite, state: JobState
) -> None:
    """B15: all jobs of a sweep held their GPUs while one of them converted."""
    site.scheduler.refuse_after = 2
    site.launch("--dcp-ckpt-path", "weights", "--dcp-config", "config.yaml", "--sweep", "sweep.yaml")
    site.scheduler.refuse_after = None
    site.scheduler.state["101"] = state
    site.launcher.resume(find_launch(site.log, site.folders[0]))
    first, second, *rest = site.scheduler.specs
    assert (first.after_ok, second.after_ok) == ((), ("101",))
    if state is JobState.FAILED:
        assert rest.pop(0).folder.name == "conversion-2"
    wanted = {JobState.PENDING: ("101",), JobState.COMPLETED: (), JobState.FAILED: ("103",)}[state]
    assert {spec.after_ok for spec in rest} == {wanted}


def test_eight_jobs_can_become_two_and_then_five(site: LaunchSite) -> None:
    site.launch(MODEL, "--jobs", "8")
    launch = find_launch(site.log, site.folders[0])

    def live() -> list[str]:
        return [job_id for job_id, state in site.scheduler.state.items() if state.alive]

    for jobs, ids in ((2, ["109", "110"]), (5, ["111", "112", "113", "114", "115"])):
        assert site.launcher.resume(launch, jobs) == 0
        assert live() == ids  # those before have other shares
        shares = [spec.command[-1] for spec in site.scheduler.specs[-jobs:]]
        assert shares == [f"shard={n}/{jobs}" for n in range(1, jobs + 1)]
    specs = site.scheduler.specs
    assert len({spec.name for spec in specs}) == len({spec.folder for spec in specs}) == 15
    site.scheduler.state |= {"112": JobState.FAILED, "113": JobState.COMPLETED}
    assert site.launcher.resume(launch) == 0
    assert live() == ["111", "114", "115", "116"]
    assert site.scheduler.specs[-1].command[-1] == "shard=2/5"
    assert site.launcher.resume(launch, 1) == 0
    assert live() == ["117"] and not site.scheduler.specs[-1].command[-1].startswith("shard")


def test_a_combination_whose_rows_are_done_gets_no_more_jobs(site: LaunchSite) -> None:
    site.launch(*SWEEP)
    site.scheduler.state |= {"101": JobState.COMPLETED, "102": JobState.FAILED, "103": JobState.RUNNING}
    site.launcher.resume(find_launch(site.log, site.folders[0]))
    assert [spec.command[1].split("/")[-2] for spec in site.scheduler.specs[3:]] == ["eval_sweep_2"]


def test_a_cancel_finds_a_job_whose_id_was_never_recorded(site: LaunchSite) -> None:
    site.launch(*SWEEP)
    forget_ids(site, "103")
    site.scheduler.state["101"] = JobState.COMPLETED
    assert site.launcher.cancel(find_launch(site.log, site.folders[0])) == 0
    assert [state.alive for state in site.scheduler.state.values()] == [False] * 3
    assert site.scheduler.state["101"] is JobState.COMPLETED
    assert site.printed[-1].startswith("Cancelled 2 of 3 ")
