"""What SLURM's commands print becomes states, ids and seconds."""

from __future__ import annotations

import pytest

from rollyard.launchers.slurm.client.slurm_client import Standing, array_base, parse_job_id, without_job
from rollyard.launchers.slurm.client.states import parse_state
from rollyard.launchers.slurm.client.time_limit import seconds_of
from rollyard.launchers.slurm.job.ray_nodes import cpus_per_node
from rollyard.launchers.slurm.job_types import JobState
from rollyard.records.errors import OperatorError, RunError


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


@pytest.mark.parametrize("state", JobState)
def test_only_failures_count(state: JobState) -> None:
    counting = {"FAILED", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "UNKNOWN"}
    assert state.counts == (state.value in counting)


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


def test_output_without_an_id_is_an_error() -> None:
    with pytest.raises(RunError, match="sbatch printed 'job 123'"):
        parse_job_id("job 123\n")


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
