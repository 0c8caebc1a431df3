"""Calls to SLURM's commands, with programs in place of them."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from rollyard.launchers.slurm.chain.attempts import attempts_of
from rollyard.launchers.slurm.chain.record import ChainEventKind, ChainRecord
from rollyard.launchers.slurm.client.slurm_client import SlurmClient, SlurmError, SlurmTimeoutError
from rollyard.launchers.slurm.client.submitter import submit_once
from rollyard.launchers.slurm.job.predecessors import settle
from rollyard.launchers.slurm.job_files import Submission, comment, write_submission
from rollyard.launchers.slurm.job_types import JobSpec, JobState, SubmittedJob
from rollyard.launchers.slurm.slurm_scheduler import SlurmScheduler
from rollyard.records.errors import OperatorError


class Programs:
    """A folder of shell scripts named like SLURM's commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = SlurmClient({"PATH": f"{folder}:{os.environ['PATH']}"}, 10.0)

    def write(self, name: str, body: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\ncd {self.folder}\n{body}\n")
        (self.folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


def spec(folder: Path) -> JobSpec:
    return JobSpec(name="one", folder=folder, command=(sys.executable,), time="1:0:0")


def test_a_command_that_is_not_installed_is_a_wrong_host(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"squeue was not found"):
        SlurmClient({"PATH": str(tmp_path)}).queue()


def test_an_unanswered_command_ends_after_its_time_limit(programs: Programs) -> None:
    programs.write("squeue", "exec sleep 60")
    impatient = SlurmClient({"PATH": f"{programs.folder}:{os.environ['PATH']}"}, 0.2)
    with pytest.raises(SlurmTimeoutError, match=r"squeue .* 0\.2 s; `scontrol ping`"):
        impatient.queue()


def test_all_lines_of_a_refusal_are_one_line(programs: Programs) -> None:
    programs.write(
        "sbatch", "for line in QOSMaxSubmitJob 'Not submitted'; do echo sbatch: error: $line >&2; done; exit 1"
    )
    with pytest.raises(SlurmError, match=r"^sbatch: QOSMaxSubmitJob; Not submitted$"):
        programs.client.sbatch([])


def test_a_lost_answer_of_sbatch_is_looked_up_before_the_job_is_submitted_again(programs: Programs) -> None:
    programs.write("sbatch", "echo run >>runs; echo 'sbatch: error: Socket timed out' >&2; exit 1")
    programs.write("squeue", f"[ -e runs ] && echo '9|PENDING|{comment('c', 1)}'; true")
    assert submit_once(programs.client, spec(programs.folder), "c", 1) == "9"
    assert (programs.folder / "runs").read_text() == "run\n"


@pytest.mark.parametrize("answer", ["echo 'your job is in'", "kill -9 $$"])
def test_an_unreadable_answer_of_sbatch_is_looked_up(programs: Programs, answer: str) -> None:
    programs.write("sbatch", f"echo run >>runs; {answer}")
    programs.write("squeue", f"echo '9|PENDING|{comment('c', 1)}'")
    assert submit_once(programs.client, spec(programs.folder), "c", 1) == "9"
    assert (programs.folder / "runs").read_text() == "run\n"


@pytest.mark.parametrize("printed", ["a banner", "a|b|c", "|PENDING|"])
def test_an_unreadable_queue_is_not_an_empty_one(programs: Programs, printed: str) -> None:
    """`resume` would submit a second job for one that runs."""
    programs.write("squeue", f"echo '{printed}'")
    with pytest.raises(SlurmError, match=r"squeue printed "):
        programs.client.queue()


def test_line_breaks_in_the_comment_of_another_job_do_not_hide_jobs(programs: Programs) -> None:
    programs.write("squeue", r"printf '7|RUNNING|two\nlines\n8|PENDING|\n'")
    assert [job.job_id for job in programs.client.queue()] == ["7", "8"]


def test_a_lost_answer_without_a_job_is_submitted_again(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    programs.write("sbatch", "[ -e runs ] && echo 5 && exit; touch runs; echo 'Socket timed out' >&2; exit 1")
    programs.write("squeue", "echo '9|PENDING|another job'")
    assert submit_once(programs.client, spec(programs.folder), "c", 1) == "5"


def test_disabled_accounting_is_no_error(programs: Programs) -> None:
    programs.write("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert programs.client.accounted("7") is None


def test_accounting_knows_a_job_that_squeue_has_forgotten(programs: Programs) -> None:
    programs.write("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    programs.write("sacct", "echo 'OUT_OF_MEMORY'")
    folder = programs.folder / "job"
    folder.mkdir()
    write_submission(folder, Submission(chain="c", name="one", job_id="7", submitted=0))
    job = SubmittedJob(name="one", job_id="7", folder=folder, submitted=0)
    programs.write("squeue", 'case "$*" in *--me*) ;; *) echo "Invalid job id specified" >&2; exit 1 ;; esac')
    assert SlurmScheduler(programs.client).states([job]) == {"7": JobState.OUT_OF_MEMORY}


def test_a_job_killed_at_its_limit_and_forgotten_is_a_timeout(programs: Programs) -> None:
    programs.write("squeue", 'echo "Invalid job id specified" >&2; exit 1')
    programs.write("sacct", "exit 1")
    record, job = ChainRecord(programs.folder, "c"), spec(programs.folder)
    record.append(ChainEventKind.STARTED, "7", at=1000.0)
    heartbeat = programs.folder / ".alive-7-0"
    heartbeat.touch()
    os.utime(heartbeat, (4595.0, 4595.0))
    assert settle(programs.client, record, job, programs.folder, "8") is None
    (attempt,) = attempts_of(record.events())
    assert (attempt.state, attempt.ended) == (JobState.TIMEOUT, 4595.0)
    assert not heartbeat.exists()


def test_a_job_without_a_record_of_its_folder_is_an_error(programs: Programs) -> None:
    job = SubmittedJob(name="one", job_id="7", folder=programs.folder, submitted=0)
    with pytest.raises(Exception, match=r"job 7\b"):
        SlurmScheduler(programs.client).states([job])


def test_completed_chains_are_reported_while_slurm_is_down(programs: Programs) -> None:
    folder = programs.folder / "job"
    folder.mkdir()
    write_submission(folder, Submission(chain="c", name="one", job_id="7", submitted=0))
    (folder / "done.json").write_text(json.dumps({"chain": "c", "job_id": "8", "time": 1}))
    job = SubmittedJob(name="one", job_id="7", folder=folder, submitted=0)
    programs.write("squeue", "exit 1")
    assert SlurmScheduler(programs.client).states([job]) == {"7": JobState.COMPLETED}


def test_the_state_of_a_predecessor_is_read_when_its_processes_have_ended(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    programs.write(
        "squeue",
        "state=COMPLETING; [ -e asked ] && state=CANCELLED; touch asked\necho $state 0 2026-11-23T01:00:00 N/A None",
    )
    record = ChainRecord(programs.folder, "c")
    record.append(ChainEventKind.STARTED, "7", at=1000.0)
    assert settle(programs.client, record, spec(programs.folder), programs.folder, "8") is None
    assert attempts_of(record.events())[0].state == JobState.CANCELLED
