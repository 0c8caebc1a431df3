"""Submission: values arrive unchanged, and each job is submitted exactly once."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from rollyard.launchers.slurm.client import SlurmClient, SlurmTimeoutError, array_base
from rollyard.launchers.slurm.job import JobState, read_submission, sbatch_arguments
from rollyard.launchers.slurm.scheduler import Scheduler
from rollyard.records.errors import RunError
from tests.external.slurm.cluster import Cluster
from tests.external.slurm.launched import Launcher
from tests.support.waiting import eventually

TORTURE = ["two words", "", "'single' \"double\"", "$(touch evil) `touch evil` $HOME ${PATH}", "a\nb\n", "x,y;z|&>"]
TORTURE += ["-n", "é\t\\"]
SHOW = "import json; print('VALUES ' + json.dumps([sys.argv[1:], os.environ.get('V'), os.getcwd()]))"


def test_arguments_and_variables_arrive_as_given(launcher: Launcher) -> None:
    variable = "\n".join(TORTURE)
    job = launcher.submit(SHOW, *TORTURE, environment={"V": variable})
    assert job.until_over() == JobState.COMPLETED
    (line,) = [line for line in job.log().splitlines() if line.startswith("VALUES ")]
    assert json.loads(line.removeprefix("VALUES ")) == [TORTURE, variable, str(Path.cwd())]
    assert not list(job.folder.rglob("evil"))


def test_a_job_gets_the_gpus_that_it_asks_for(launcher: Launcher) -> None:
    program = "print('GPUS', os.environ.get('CUDA_VISIBLE_DEVICES'), os.environ['GPUS_PER_NODE'])"
    three, none = launcher.submit(program, gpus_per_node=3), launcher.submit(program)
    assert {three.until_over(), none.until_over()} == {JobState.COMPLETED}
    assert len(three.log().split("GPUS ")[1].split()[0].split(",")) == 3
    assert "GPUS None 0" in none.log()


def test_what_slurm_refuses_is_one_line(launcher: Launcher) -> None:
    with pytest.raises(RunError, match=r"^sbatch: .*node configuration"):
        launcher.submit("pass", gpus_per_node=9)
    with pytest.raises(RunError, match=r"^sbatch: .*partition"):
        launcher.submit("pass", partition="nowhere")


def test_a_folder_keeps_its_job_until_the_chain_has_failed(launcher: Launcher) -> None:
    spec = launcher.spec("sys.exit(START == 1)", max_retries=0)
    first = launcher.submit_spec(spec)
    assert launcher.scheduler.submit(spec) == first.job.job_id
    assert first.until_over() == JobState.FAILED
    second = launcher.submit_spec(spec)
    assert second.job.job_id != first.job.job_id
    assert second.until_over() == JobState.COMPLETED
    assert launcher.scheduler.submit(spec) == second.job.job_id


def test_a_job_submitted_while_the_controller_hangs_runs_once(launcher: Launcher, cluster: Cluster) -> None:
    impatient = Scheduler(SlurmClient(cluster.environment, 0.5))
    spec = launcher.spec("time.sleep(2)")
    os.kill(cluster.pid("slurmctld"), signal.SIGSTOP)
    try:
        with pytest.raises(SlurmTimeoutError, match=r"0\.5 s"):
            impatient.submit(spec)
    finally:
        os.kill(cluster.pid("slurmctld"), signal.SIGCONT)
    job = launcher.submit_spec(spec)
    assert job.until_over() == JobState.COMPLETED
    assert len((job.folder / "started").read_text().split()) == 1


def test_of_two_jobs_of_the_same_submission_one_runs(launcher: Launcher) -> None:
    spec = launcher.spec("while not started.with_name('may_end').exists(): time.sleep(0.1)")
    job = launcher.submit_spec(spec)
    job.until_running()
    second = launcher.client.sbatch(sbatch_arguments(spec, job.chain, 1))
    eventually("the end of the second", lambda: "this one ends" in job.log(second))
    (job.folder / "may_end").touch()
    assert job.until_over() == JobState.COMPLETED
    assert len((job.folder / "started").read_text().split()) == 1


def test_a_job_of_an_earlier_chain_in_the_same_folder_does_not_run(launcher: Launcher) -> None:
    spec = launcher.spec("pass")
    job = launcher.submit_spec(spec)
    assert job.until_over() == JobState.COMPLETED
    earlier = launcher.client.sbatch(sbatch_arguments(spec, "an-earlier-chain", 2))
    eventually("its end", lambda: "earlier chain ends" in job.log(earlier))
    assert len((job.folder / "started").read_text().split()) == 1


def test_jobs_after_a_conversion_start_only_if_it_succeeds(launcher: Launcher) -> None:
    good, bad = launcher.submit("pass", chain=False), launcher.submit("sys.exit(1)", chain=False)
    after_good = launcher.submit("pass", after_ok=(good.job.job_id,))
    after_bad = launcher.submit("pass", after_ok=(bad.job.job_id,))
    assert after_good.until_over() == JobState.COMPLETED
    assert after_bad.until_over() == JobState.CANCELLED
    assert not (after_bad.folder / "started").exists()


def test_array_jobs_are_listed_and_cancelled(launcher: Launcher) -> None:
    array = launcher.client.sbatch(["--array=0-3", "--hold", "--output=/dev/null", "--comment=an array", "--wrap=true"])
    listed = [job for job in launcher.client.queue() if job.comment == "an array"]
    assert {array_base(job.job_id) for job in listed} == {array}
    launcher.client.cancel([listed[0].job_id])
    assert not [job for job in launcher.client.queue() if job.comment == "an array" and job.state.alive]


def test_a_preview_shows_what_a_submission_writes(launcher: Launcher) -> None:
    spec = launcher.spec("pass")
    preview = launcher.scheduler.preview(spec)
    assert not spec.folder.exists()
    job = launcher.submit_spec(spec)
    submission = read_submission(spec.folder)
    assert submission is not None
    for path, text in preview.files.items():
        assert path.read_text() == text.replace("<id of the chain>", submission.chain)
    assert job.until_over() == JobState.COMPLETED
