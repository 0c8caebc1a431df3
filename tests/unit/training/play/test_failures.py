"""A failure never becomes a reward, unless the policy could buy one with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rollyard.records.errors import RunError
from rollyard.training.endings import Treatment
from tests.faults.crash.harness import forked
from tests.unit.training.play.training_stack import (
    SHORT_S,
    ScriptedPolicy,
    alternating,
    training,
    write_questions,
)


def first_answers(text: str, question: int = 0, times: int = 1) -> ScriptedPolicy:
    """A policy that answers a question with `text` the first `times` times."""
    return ScriptedPolicy(lambda found, count: text if found == question and count < times else str(count % 2))


async def test_a_rollout_that_failed_for_good_does_not_count_in_its_group(tmp_path: Path) -> None:
    policy = first_answers("500")
    async with training(tmp_path, policy, group_size=3, max_attempts=1) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
    [failed] = [member for member in batch.groups[0].members if not member.sequences]
    assert (failed.treatment, failed.ending) == (Treatment.LEFT_OUT, "upstream_error")
    assert sorted(batch.groups[0].advantages) == pytest.approx([-0.70700, 0.0, 0.70700], abs=1e-4)
    assert batch.failures == {"upstream_error": 1}


@pytest.mark.parametrize("text", ["500", "crash"])
async def test_a_failure_of_a_server_is_retried(tmp_path: Path, text: str) -> None:
    async with training(tmp_path, first_answers(text)) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
        assert [row["terminal"] for row in run.failures(1)] == [False]
    assert all(member.sequences for group in batch.groups for member in group.members)
    assert not batch.failures


async def test_a_timeout_of_the_policy_pays_zero_and_is_not_retried(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda question, count: "1")
    policy.hangs = lambda question, count: question == 0 and count == 0
    model = {"request_timeout_s": SHORT_S, "max_attempts": 3, "retry_timeouts": False}
    async with training(tmp_path, policy, model_settings=model) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
        assert [(row["failure_kind"], row["terminal"]) for row in run.failures(1)] == [("timeout", True)]
    [slow] = [member for member in batch.groups[0].members if not member.sequences]
    assert (slow.treatment, slow.reward) == (Treatment.ZERO, 0.0)
    assert policy.asked[0] == 2
    assert batch.groups[0].skipped is None and batch.groups[1].skipped == "zero_variance"


async def test_an_episode_that_exceeds_its_deadline_is_left_out_and_not_retried(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    policy.hangs = lambda question, count: question == 0 and count == 0
    async with training(tmp_path, policy, group_size=3, rollout_timeout_s=SHORT_S) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
    assert [member.treatment for member in batch.groups[0].members].count(Treatment.LEFT_OUT) == 1
    assert policy.asked[0] == 3


async def test_too_many_failures_stop_the_run_and_are_played_again_once_the_cause_is_fixed(tmp_path: Path) -> None:
    policy = first_answers("500", times=100)
    async with training(tmp_path, policy, max_attempts=2, max_failure_rate=0.4) as run:
        with pytest.raises(RunError, match=r"^step 1: 2 of 4 .*upstream_error; .*policy_model: .*crashed"):
            await run.steps(source := run.source(), 1)
        policy.answer = alternating
        asked = policy.asked[1]
        [batch] = await run.steps(source, 1)
        await source.close()
    assert all(member.sequences for group in batch.groups for member in group.members)
    assert policy.asked[1] == asked


async def test_a_task_whose_rollouts_failed_is_played_again_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    policy = first_answers("500", times=2)
    async with training(tmp_path, policy, questions=4, max_steps=0, max_attempts=1) as run:
        batches = await run.steps(source := run.source(), 3)
        assert await run.step(source, 4) is None
        assert [row["number"] for row in run.rows(3)] == [0, 0]
    assert [group.skipped for group in batches[0].groups] == ["too_few_members", None]
    assert [group.skipped for group in batches[2].groups] == [None]


async def test_a_task_that_always_fails_is_played_three_times(tmp_path: Path) -> None:
    policy = first_answers("500", times=100)
    async with training(tmp_path, policy, questions=2, max_steps=0, max_attempts=1, max_failure_rate=1.0) as run:
        batches = await run.steps(source := run.source(), 3)
        assert await run.step(source, 4) is None
    assert [len(batch.groups) for batch in batches] == [2, 1, 1]


async def test_a_bad_task_is_not_played_again(tmp_path: Path) -> None:
    async with training(tmp_path, max_steps=0) as run:
        write_questions(run.data, [1000, 1])
        [batch] = await run.steps(source := run.source(), 1)
        assert await run.step(source, 2) is None
    assert [group.skipped for group in batch.groups] == ["too_few_members", None]
    assert batch.failures == {"bad_task": 2}


async def test_a_killed_environment_costs_no_rollout(tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_once(question: int, count: int) -> str:
        if not killed:
            killed.append(run.pid("verifier"))
            os.kill(killed[0], signal.SIGKILL)
        return str(count % 2)

    async with training(tmp_path, ScriptedPolicy(kill_once), start=forked, questions=2) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
        assert run.failures(1)
    assert all(member.sequences for group in batch.groups for member in group.members)
