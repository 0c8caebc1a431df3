"""Episodes of a step become the groups of a batch."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.records.errors import RunError
from rollyard.training.batch_source import MAX_EXTRA
from rollyard.training.groups import Treatment
from rollyard.training.update import Batch
from tests.support.waiting import short_s, until
from tests.unit.training.scripted_training import (
    ScriptedPolicy,
    Training,
    alternating,
    training,
    write_questions,
)
from tests.unit.training.test_resume import interrupt


def questions(run: Training, step: int) -> list[int]:
    return [row["number"] for row in sorted(run.rows(step), key=lambda row: row["_ng_task_index"])][::2]


def rewards(batch: Batch) -> list[list[float]]:
    return [[member.reward for member in group.members] for group in batch.groups]


async def test_a_step_has_groups_of_the_next_tasks(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        first, second = await run.played(2)
        assert (questions(run, 1), questions(run, 2)) == ([0, 1], [2, 3])
    assert (first.step, second.step) == (1, 2)
    assert [sorted(found) for found in rewards(first)] == [[0.0, 1.0]] * 2
    assert all(sorted(group.advantages)[1] == pytest.approx(0.5 / (0.5**0.5 + 1e-4)) for group in first.groups)


async def test_every_row_is_used_once_per_epoch_and_the_last_batch_is_short(tmp_path: Path) -> None:
    async with training(tmp_path, questions=3, max_steps=0) as run:
        batches = await run.steps(source := run.source(), 2)
        assert await run.step(source, 3) is None
        assert await run.step(source, 3) is None
    assert [len(batch.groups) for batch in batches] == [2, 1]


async def test_a_task_that_occurs_twice_in_a_step_has_two_groups(tmp_path: Path) -> None:
    async with training(tmp_path, questions=1) as run:
        [batch] = await run.played()
    assert [len(group.members) for group in batch.groups] == [2, 2]


def first_answers(text: str, question: int = 0, times: int = 1) -> ScriptedPolicy:
    """A policy that answers a question with `text` the first `times` times."""
    return ScriptedPolicy(lambda found, count: text if found == question and count < times else str(count % 2))


async def test_a_rollout_that_failed_for_good_does_not_count_in_its_group(tmp_path: Path) -> None:
    policy = first_answers("500")
    async with training(tmp_path, policy, group_size=3, max_attempts=1) as run:
        [batch] = await run.played()
    [failed] = [member for member in batch.groups[0].members if not member.sequences]
    assert (failed.treatment, failed.ending) == (Treatment.LEFT_OUT, "upstream_error")
    assert sorted(batch.groups[0].advantages) == pytest.approx([-0.70700, 0.0, 0.70700], abs=1e-4)
    assert batch.failures == {"upstream_error": 1}


async def test_a_timeout_of_the_policy_pays_zero_and_is_not_retried(tmp_path: Path) -> None:
    policy = ScriptedPolicy(lambda question, count: "1")
    policy.hangs = lambda question, count: question == 0 and count == 0
    model = {"request_timeout_s": short_s(), "max_attempts": 3, "retry_timeouts": False}
    async with training(tmp_path, policy, model_settings=model) as run:
        [batch] = await run.played()
        assert [(row["failure_kind"], row["terminal"]) for row in run.failures(1)] == [("timeout", True)]
    [slow] = [member for member in batch.groups[0].members if not member.sequences]
    assert (slow.treatment, slow.reward) == (Treatment.ZERO, 0.0)
    assert policy.asked[0] == 2
    assert batch.groups[0].skipped is None and batch.groups[1].skipped == "zero_variance"


async def test_an_episode_that_exceeds_its_deadline_is_left_out_and_not_retried(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    policy.hangs = lambda question, count: question == 0 and count == 0
    async with training(tmp_path, policy, group_size=3, rollout_timeout_s=short_s()) as run:
        [batch] = await run.played()
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


async def test_a_bad_task_is_not_played_again(tmp_path: Path) -> None:
    async with training(tmp_path, max_steps=0) as run:
        write_questions(run.data, [1000, 1])
        [batch] = await run.steps(source := run.source(), 1)
        assert await run.step(source, 2) is None
    assert [group.skipped for group in batch.groups] == ["too_few_members", None]
    assert batch.failures == {"bad_task": 2}


@pytest.mark.parametrize("ahead", [0, 1])
async def test_as_many_steps_as_set_are_played_while_the_trainer_updates(tmp_path: Path, ahead: int) -> None:
    async with training(tmp_path, max_staleness=ahead) as run:
        await run.step(source := run.source(), 1)
        await until(lambda: all(run.paths.rollouts(1 + step).exists() for step in range(ahead + 1)))
        assert not run.paths.rollouts(2 + ahead).exists()
        batch = await run.step(source, 2)
        await until(run.paths.rollouts(2 + ahead).exists)
        await source.close()
    assert batch is not None and not any(group.skipped for group in batch.groups)


async def test_nothing_is_played_after_the_last_step(tmp_path: Path) -> None:
    async with training(tmp_path, max_staleness=2, max_steps=2) as run:
        batches = await run.played(3)
        assert not run.paths.rollouts(3).exists()
    assert [batch.step for batch in batches] == [1, 2]


async def test_rollouts_of_old_weights_are_left_out_and_counted(tmp_path: Path) -> None:
    def lagging(question: int, count: int) -> str:
        """One of three rollouts of question 0 is from an engine without the update."""
        policy.updates = 2 if (question, count) == (0, 0) else 4
        return str(count % 2)

    policy = ScriptedPolicy(lagging)
    async with training(tmp_path, policy, group_size=3, max_staleness=1) as run:
        batch = await (source := run.source()).next_batch(5)
        await source.close()
    assert batch is not None
    [stale] = [member for group in batch.groups for member in group.members if member.ending == "stale"]
    assert (stale.treatment, stale.sequences) == (Treatment.LEFT_OUT, ())
    assert batch.failures == {"stale": 1}
    assert sorted(batch.groups[0].advantages) == pytest.approx([-0.70700, 0.0, 0.70700], abs=1e-4)


async def test_a_step_of_old_or_unknown_weights_stops_the_run_and_is_played_again(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        run.policy.updates = None
        with pytest.raises(RunError, match="version '0'"):
            await run.source().next_batch(3)
        run.policy.updates = 1
        with pytest.raises(RunError, match=r"^step 3: .*\b0 updates"):
            await (source := run.source(seed=1)).next_batch(3)
        assert await run.step(source, 3) is not None
        await source.close()


async def test_an_incomplete_step_of_earlier_weights_is_played_from_the_start(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    async with training(tmp_path, policy, max_staleness=1) as run:
        policy.hangs = lambda question, count: question == 3
        await run.step(first := run.source(), 1)
        await until(lambda: run.paths.rollouts(2).exists() and len(run.rows(2)) == 2)
        await first.close()
        policy.hangs = lambda question, count: False
        await run.played(2)
        assert any("step_000002.jsonl" in line and "incomplete" in line for line in run.lines)
    assert policy.asked[0] == 2
    assert policy.asked[2] == 4


def easy(*questions: int) -> ScriptedPolicy:
    """A policy that always solves these questions, and the others every second time."""
    return ScriptedPolicy(lambda question, count: "1" if question in questions else str(count % 2))


async def test_a_group_without_variance_is_replaced(tmp_path: Path) -> None:
    async with training(tmp_path, easy(0, 2), resample=True) as run:
        [batch] = await run.played()
        assert {row["number"] for row in run.rows(1)} == {0, 1, 2, 3}
    assert [group.skipped for group in batch.groups] == ["zero_variance", None, "zero_variance", None]
    assert batch.position["index"] == 4


@pytest.mark.parametrize(("questions", "groups"), [(20, 2 * (1 + MAX_EXTRA)), (3, 3)])
async def test_the_number_of_additional_tasks_is_limited_and_the_data_may_end(
    tmp_path: Path, questions: int, groups: int
) -> None:
    async with training(tmp_path, easy(*range(20)), questions=questions, resample=True, max_steps=0) as run:
        [batch] = await run.played()
    assert len(batch.groups) == groups


async def test_a_run_that_stops_while_it_resamples_goes_on_with_the_same_tasks(tmp_path: Path) -> None:
    async with training(tmp_path, easy(0), resample=True) as run:
        await run.played()
        kept = [row for row in run.rows(1) if row["number"] != 2]
        run.paths.rollouts(1).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in kept))
        interrupt(run, 1, played=2)
        asked = run.policy.asked.copy()
        [batch] = await run.played()
    assert run.policy.asked - asked == {2: 2}
    assert [group.skipped for group in batch.groups] == ["zero_variance", None, None]
