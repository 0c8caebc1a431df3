"""When a chain goes on, and what its record survives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.slurm.chain.attempts import Attempt, attempts_of, end_by_rule, end_of
from rollyard.launchers.slurm.chain.record import CHAIN_FILE, ChainEventKind, ChainRecord
from rollyard.launchers.slurm.job_types import JobSpec, JobState


def spec(**settings: Any) -> JobSpec:
    return JobSpec(name="one", folder=Path("/jobs/one"), command=("ng_eval",), **settings)


def ended(*states: JobState, running_s: float = 10.0) -> list[Attempt]:
    return [
        Attempt(job_id=str(number), started=0.0, ended=running_s, state=state, reason="a reason")
        for number, state in enumerate(states, 1)
    ]


@pytest.mark.parametrize("state", [state for state in JobState if not state.alive])
def test_each_end_continues_counts_or_ends_the_chain(state: JobState) -> None:
    end = end_by_rule(spec(max_retries=0), ended(state))
    if state in (JobState.CANCELLED, JobState.COMPLETED):
        assert end is not None and end.state == state
    elif state.counts:
        assert end is not None and end.state == state
        assert "max_retries is 0;" in end[1] and end[1].endswith(f" 1: {state}: a reason")
    else:
        assert end is None


def test_failures_count_over_the_whole_chain() -> None:
    states = [JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY, JobState.PREEMPTED]
    assert end_by_rule(spec(max_retries=2), ended(*states)) is None
    assert end_by_rule(spec(max_retries=2), ended(*states, JobState.FAILED)) is not None


def test_running_time_adds_up_over_the_chain() -> None:
    three = ended(*[JobState.TIMEOUT] * 3)
    assert end_by_rule(spec(max_walltime_s=31.0), three) is None
    end = end_by_rule(spec(max_walltime_s=30.0), three)
    assert end is not None and end.state is JobState.TIMEOUT and "max_walltime_s, 30 s" in end[1]


def test_a_chain_has_at_most_max_jobs_starts() -> None:
    assert end_by_rule(spec(max_jobs=3), ended(*[JobState.DRAINED] * 3)) is not None
    assert end_by_rule(spec(max_jobs=4), ended(*[JobState.DRAINED] * 3)) is None


def test_a_restart_of_the_same_job_is_another_attempt(tmp_path: Path) -> None:
    record = ChainRecord(tmp_path, "c")
    record.append(ChainEventKind.STARTED, "7", 0, at=1.0, node="n1")
    record.append(ChainEventKind.ENDED, "7", 0, at=4.0, state=JobState.PREEMPTED, reason="SLURM ended the job")
    record.append(ChainEventKind.STARTED, "7", 1, at=9.0, node="n2")
    first, second = attempts_of(record.events())
    assert (first.state, first.running_s, second.state, second.node) == (
        JobState.PREEMPTED,
        3.0,
        JobState.RUNNING,
        "n2",
    )


def test_a_line_that_a_killed_job_left_unfinished_is_skipped_and_ended(tmp_path: Path) -> None:
    record = ChainRecord(tmp_path, "c")
    record.append(ChainEventKind.STARTED, "7", at=1.0)
    with (tmp_path / CHAIN_FILE).open("a") as file:
        file.write('{"event":"ended","chain":"c","jo')
    assert len(record.events()) == 1
    record.append(ChainEventKind.ENDED, "7", at=2.0, state=JobState.FAILED)
    assert [event.event for event in record.events()] == [ChainEventKind.STARTED, ChainEventKind.ENDED]


def test_events_of_other_chains_and_newer_versions_are_ignored(tmp_path: Path) -> None:
    ChainRecord(tmp_path, "earlier").append(ChainEventKind.CLOSED, "3", state=JobState.FAILED, reason="it failed")
    with (tmp_path / CHAIN_FILE).open("a") as file:
        file.write('{"event":"new kind","chain":"c","job_id":"7","time":1}\n[]\n')
    record = ChainRecord(tmp_path, "c")
    assert record.events() == []
    assert end_of(record.events()) is None
