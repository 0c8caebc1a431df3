"""Calls to SLURM's commands, with programs in place of them, and what they print."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from rollyard.launchers.slurm.client import (
    SlurmClient,
    SlurmError,
    SlurmTimeoutError,
    Standing,
    array_base,
    parse_job_id,
    parse_state,
    without_job,
)
from rollyard.launchers.slurm.job import (
    JobSpec,
    JobState,
    Submission,
    SubmittedJob,
    comment,
    seconds_of,
    write_submission,
)
from rollyard.launchers.slurm.job_runner import alive_file, settle
from rollyard.launchers.slurm.nodes import cpus_per_node
from rollyard.launchers.slurm.scheduler import ChainEventKind, ChainRecord, Scheduler, attempts_of, submit_once
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
    job = SubmittedJob(name="one", job_id="7", folder=folder)
    programs.write("squeue", 'case "$*" in *--me*) ;; *) echo "Invalid job id specified" >&2; exit 1 ;; esac')
    assert Scheduler(programs.client).states([job]) == {"7": JobState.OUT_OF_MEMORY}


def test_a_job_killed_at_its_limit_and_forgotten_is_a_timeout(programs: Programs) -> None:
    programs.write("squeue", 'echo "Invalid job id specified" >&2; exit 1')
    programs.write("sacct", "exit 1")
    record, job = ChainRecord(programs.folder, "c"), spec(programs.folder)
    record.append(ChainEventKind.STARTED, "7", at=1000.0)
    alive = alive_file(programs.folder, "7", 0)
    alive.touch()
    os.utime(alive, (4595.0, 4595.0))
    assert settle(programs.client, record, job, programs.folder, "8") is None
    (attempt,) = attempts_of(record.events())
    assert (attempt.state, attempt.ended) == (JobState.TIMEOUT, 4595.0)
    assert not alive.exists()


def test_a_job_without_a_record_of_its_folder_is_an_error(programs: Programs) -> None:
    job = SubmittedJob(name="one", job_id="7", folder=programs.folder)
    with pytest.raises(Exception, match=r"job 7\b"):
        Scheduler(programs.client).states([job])


def test_completed_chains_are_reported_while_slurm_is_down(programs: Programs) -> None:
    folder = programs.folder / "job"
    folder.mkdir()
    write_submission(folder, Submission(chain="c", name="one", job_id="7", submitted=0))
    (folder / "done.json").write_text(json.dumps({"chain": "c", "job_id": "8", "time": 1}))
    job = SubmittedJob(name="one", job_id="7", folder=folder)
    programs.write("squeue", "exit 1")
    assert Scheduler(programs.client).states([job]) == {"7": JobState.COMPLETED}


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


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("COMPLETED", JobState.COMPLETED),
        ("CANCELLED by 1000", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("OUT_OF_ME+", JobState.OUT_OF_MEMORY),
        ("COMPLETING", JobState.RUNNING),
        ("CONFIGURING", JobState.RUNNING),
        ("SUSPENDED", JobState.RUNNING),
        ("REQUEUED", JobState.PENDING),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("NODE_FAIL", JobState.NODE_FAIL),
        ("LAUNCH_FAILED", JobState.FAILED),
        ("DRAINED", JobState.UNKNOWN),
        ("SOMETHING_NEW", JobState.UNKNOWN),
        ("C+", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_every_name_of_a_state_is_known_or_unknown(text: str, state: JobState) -> None:
    assert parse_state(text) == state


@pytest.mark.parametrize(
    ("standing", "ending"),
    [
        (Standing("RUNNING", 0, 9e9, None, "None"), None),
        (Standing("COMPLETING", 0, 10.0, None, "None"), JobState.CANCELLED),
        (Standing("COMPLETING", 0, 10.0, None, "TimeLimit"), JobState.TIMEOUT),
        (Standing("COMPLETING", 0, 10.0, None, "NodeDown"), JobState.NODE_FAIL),
        (Standing("COMPLETING", 1, 9e9, None, "None"), JobState.REQUEUED),
        (Standing("PENDING", 1, 9e9, None, "BeginTime"), JobState.REQUEUED),
        (Standing("COMPLETING", 1, 9e9, 12.0, "None"), JobState.PREEMPTED),
        (Standing("RUNNING", 0, 9e9, 2.0, "None"), None),
        (Standing("CANCELLED", 0, 10.0, None, "None"), JobState.CANCELLED),
    ],
)
def test_why_slurm_ends_a_job_that_started_at_5(standing: Standing, ending: JobState | None) -> None:
    assert standing.being_ended(0, 5.0) == ending


@pytest.mark.parametrize(
    ("printed", "job_id"),
    [
        ("123\n", "123"),
        ("123;cluster\n", "123"),
        ("a message of a plug-in\n123\n", "123"),
        ("123_4", "123_4"),
        ("Submitted batch job 123\n", "123"),
    ],
)
def test_the_id_of_a_job_is_parsed(printed: str, job_id: str) -> None:
    assert parse_job_id(printed) == job_id


def test_a_task_of_an_array_belongs_to_its_job() -> None:
    assert [array_base(text) for text in ("123", "123_4", "123_[0-3]", "123+1")] == ["123"] * 4


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("2:0:0", 7200.0),
        ("30", 1800.0),
        ("1:30", 90.0),
        ("1-0", 86400.0),
        ("1-2:3", 93780.0),
        ("1-2:3:4", 93784.0),
        ("UNLIMITED", None),
    ],
)
def test_time_limits_have_the_formats_of_sbatch(time: str, seconds: float | None) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize("time", ["", "2h", "1:2:3:4", "-5", "1-", "1 0"])
def test_other_time_limits_are_refused(time: str) -> None:
    with pytest.raises(OperatorError, match="hours:minutes:seconds"):
        seconds_of(time)


def test_the_variables_of_a_job_are_not_passed_on_to_the_next() -> None:
    environment = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JOB_ID": "1",
        "SLURM_MEM_PER_CPU": "100",
        "SBATCH_WAIT": "1",
        "SBATCH_ACCOUNT": "mine",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert without_job(environment) == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "mine"}


def test_cpus_of_nodes_are_expanded() -> None:
    assert cpus_per_node("16(x2),8", 3) == [16, 16, 8]
    assert cpus_per_node("", 2) == [None, None]
