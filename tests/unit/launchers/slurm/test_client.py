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
from rollyard.launchers.slurm.scheduler import (
    ChainEventKind,
    ChainRecord,
    JobAttempt,
    Scheduler,
    attempts_of,
    submit_once,
)
from rollyard.records.errors import OperatorError, RunError

FORGOTTEN = 'echo "Invalid job id specified" >&2; exit 1'


class Programs:
    """A folder of shell scripts named like SLURM's commands, and of job 7."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"PATH": f"{folder}:{os.environ['PATH']}"}
        self.client = SlurmClient(self.environ, 10.0)
        self.spec = JobSpec(name="one", folder=folder, command=(sys.executable,), time="1:0:0")
        self.record = ChainRecord(folder, "c")

    def write(self, **bodies: str) -> None:
        for name, body in bodies.items():
            (self.folder / name).write_text(f"#!/bin/sh\ncd {self.folder}\n{body}\n")
            (self.folder / name).chmod(0o755)

    def submit(self) -> str:
        return submit_once(self.client, self.spec, "c", 1)

    def state(self, *, submitted: bool = True) -> JobState:
        if submitted:
            write_submission(self.folder, Submission(chain="c", name="one", job_id="7", submitted=0))
        return Scheduler(self.client).states([SubmittedJob(name="one", job_id="7", folder=self.folder)])["7"]

    def settled(self) -> JobAttempt:
        """The attempt of job 7, which started at 1000.0, as its successor records it."""
        self.record.append(ChainEventKind.STARTED, "7", at=1000.0)
        assert settle(self.client, self.record, self.spec, self.folder, "8") is None
        return attempts_of(self.record.events())[0]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return Programs(tmp_path)


def test_a_command_that_is_not_installed_is_a_wrong_host(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"squeue was not found"):
        SlurmClient({"PATH": str(tmp_path)}).queue()


def test_an_unanswered_command_ends_after_its_time_limit(programs: Programs) -> None:
    programs.write(squeue="exec sleep 60")
    with pytest.raises(SlurmTimeoutError, match=r"squeue .* 0\.2 s; `scontrol ping`"):
        SlurmClient(programs.environ, 0.2).queue()


def test_all_lines_of_a_refusal_are_one_line(programs: Programs) -> None:
    lines = "for line in QOSMaxSubmitJob 'Not submitted'; do echo sbatch: error: $line >&2; done; exit 1"
    programs.write(sbatch=lines)
    with pytest.raises(SlurmError, match=r"^sbatch: QOSMaxSubmitJob; Not submitted$"):
        programs.client.sbatch([])


@pytest.mark.parametrize(
    "answer", ["echo 'sbatch: error: Socket timed out' >&2; exit 1", "echo 'your job is in'", "kill -9 $$"]
)
def test_a_lost_or_unreadable_answer_of_sbatch_is_looked_up_before_the_job_is_submitted_again(
    programs: Programs, answer: str
) -> None:
    programs.write(sbatch=f"echo run >>runs; {answer}", squeue=f"[ -e runs ] && echo '9|PENDING|{comment('c', 1)}'")
    assert programs.submit() == "9"
    assert (programs.folder / "runs").read_text() == "run\n"


def test_a_lost_answer_without_a_job_is_submitted_again(programs: Programs) -> None:
    sbatch = "[ -e runs ] && echo 5 && exit; touch runs; echo 'Socket timed out' >&2; exit 1"
    programs.write(sbatch=sbatch, squeue="echo '9|PENDING|another job'")
    assert programs.submit() == "5"


@pytest.mark.parametrize("printed", ["a banner", "a|b|c", "|PENDING|"])
def test_an_unreadable_queue_is_not_an_empty_one(programs: Programs, printed: str) -> None:
    """`resume` would submit a second job for one that runs."""
    programs.write(squeue=f"echo '{printed}'")
    with pytest.raises(SlurmError, match=r"squeue printed "):
        programs.client.queue()


def test_line_breaks_in_the_comment_of_another_job_do_not_hide_jobs(programs: Programs) -> None:
    programs.write(squeue=r"printf '7|RUNNING|two\nlines\n8|PENDING|\n'")
    assert [job.job_id for job in programs.client.queue()] == ["7", "8"]


def test_accounting_knows_a_job_that_squeue_has_forgotten(programs: Programs) -> None:
    programs.write(squeue=f'case "$*" in *--me*) ;; *) {FORGOTTEN} ;; esac', sacct="echo OUT_OF_MEMORY")
    assert programs.state() == JobState.OUT_OF_MEMORY


def test_a_job_killed_at_its_limit_and_forgotten_is_a_timeout(programs: Programs) -> None:
    programs.write(squeue=FORGOTTEN, sacct="exit 1")
    alive = alive_file(programs.folder, "7", 0)
    alive.touch()
    os.utime(alive, (4595.0, 4595.0))
    attempt = programs.settled()
    assert (attempt.state, attempt.ended, alive.exists()) == (JobState.TIMEOUT, 4595.0, False)


def test_the_state_of_a_predecessor_is_read_when_its_processes_have_ended(programs: Programs) -> None:
    state = "state=COMPLETING; [ -e asked ] && state=CANCELLED; touch asked"
    programs.write(squeue=f"{state}\necho $state 0 2026-11-23T01:00:00 N/A None")
    assert programs.settled().state == JobState.CANCELLED


def test_a_job_without_a_record_of_its_folder_is_an_error(programs: Programs) -> None:
    with pytest.raises(RunError, match=r"job 7\b"):
        programs.state(submitted=False)


def test_completed_chains_are_reported_while_slurm_is_down(programs: Programs) -> None:
    (programs.folder / "done.json").write_text(json.dumps({"chain": "c", "job_id": "8", "time": 1}))
    programs.write(squeue="exit 1")
    assert programs.state() == JobState.COMPLETED


STATES = (
    {"COMPLETED": "COMPLETED", "CANCELLED by 1000": "CANCELLED", "CANCELLED+": "CANCELLED", "NODE_FAIL": "NODE_FAIL"}
    | {"COMPLETING": "RUNNING", "CONFIGURING": "RUNNING", "SUSPENDED": "RUNNING", "OUT_OF_ME+": "OUT_OF_MEMORY"}
    | {"REQUEUED": "PENDING", "REQUEUE_HOLD": "PENDING", "LAUNCH_FAILED": "FAILED"}
    | dict.fromkeys(("DRAINED", "SOMETHING_NEW", "C+", ""), "UNKNOWN")
)


@pytest.mark.parametrize(("text", "state"), STATES.items())
def test_every_name_of_a_state_is_known_or_unknown(text: str, state: str) -> None:
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
    "printed", ["123\n", "123;cluster\n", "a plug-in\n123\n", "123_4", "Submitted batch job 123\n"]
)
def test_the_id_of_a_job_is_parsed_and_a_task_of_an_array_belongs_to_its_job(printed: str) -> None:
    assert array_base(parse_job_id(printed)) == array_base("123_[0-3]") == array_base("123+1") == "123"


LIMITS = {"2:0:0": 7200, "30": 1800, "1:30": 90, "1-0": 86400, "1-2:3": 93780, "1-2:3:4": 93784, "UNLIMITED": None}


@pytest.mark.parametrize(("time", "seconds"), LIMITS.items())
def test_time_limits_have_the_formats_of_sbatch(time: str, seconds: float | None) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize("time", ["", "2h", "1:2:3:4", "-5", "1-", "1 0"])
def test_other_time_limits_are_refused(time: str) -> None:
    with pytest.raises(OperatorError, match="hours:minutes:seconds"):
        seconds_of(time)


def test_the_variables_of_a_job_are_not_passed_on_to_the_next() -> None:
    kept = {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "mine"}
    own = {"SLURM_JOB_ID": "1", "SLURM_MEM_PER_CPU": "100", "SBATCH_WAIT": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert without_job({**kept, **own}) == kept


def test_cpus_of_nodes_are_expanded() -> None:
    assert cpus_per_node("16(x2),8", 3) == [16, 16, 8]
    assert cpus_per_node("", 2) == [None, None]
