"""Episodes are played while the trainer updates, with a limit on how old their weights may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import RunError
from rollyard.training.endings import Treatment
from tests.support.waiting import until
from tests.unit.training.play.training_stack import ScriptedPolicy, training


async def test_the_next_steps_are_played_while_the_trainer_updates(tmp_path: Path) -> None:
    async with training(tmp_path, max_staleness=1) as run:
        await run.step(source := run.source(), 1)
        await until(lambda: run.paths.rollouts(2).exists() and len(run.rows(2)) == 4)
        assert not run.paths.rollouts(3).exists()
        run.policy.updates = 1
        batch = await source.next_batch(2)
        await until(run.paths.rollouts(3).exists)
        await source.close()
    assert batch is not None and not any(group.skipped for group in batch.groups)


async def test_nothing_is_played_after_the_last_step(tmp_path: Path) -> None:
    async with training(tmp_path, max_staleness=2, max_steps=2) as run:
        batches = await run.steps(source := run.source(), 3)
        await source.close()
        assert not run.paths.rollouts(3).exists()
    assert [batch.step for batch in batches] == [1, 2]


async def test_in_turn_nothing_is_played_while_the_trainer_updates(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        await run.step(source := run.source(), 1)
        await source.close()
        assert run.policy.asked.keys() == {0, 1}


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


async def test_a_step_of_old_weights_alone_stops_the_run_and_is_played_again(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        run.policy.updates = 1
        with pytest.raises(RunError, match=r"^step 3: .*\b0 updates"):
            await (source := run.source()).next_batch(3)
        assert await run.step(source, 3) is not None
        await source.close()


async def test_a_rollout_of_unknown_weights_stops_the_run(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        run.policy.updates = None
        with pytest.raises(RunError, match="version '0'"):
            await run.source().next_batch(1)


async def test_an_incomplete_step_of_earlier_weights_is_played_from_the_start(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    async with training(tmp_path, policy, max_staleness=1) as run:
        policy.hangs = lambda question, count: question == 3
        await run.step(first := run.source(), 1)
        await until(lambda: run.paths.rollouts(2).exists() and len(run.rows(2)) == 2)
        await first.close()
        policy.hangs = lambda question, count: False
        await run.steps(second := run.source(), 2)
        await second.close()
        assert any("step_000002.jsonl" in line and "incomplete" in line for line in run.lines)
    assert policy.asked[0] == 2
    assert policy.asked[2] == 4
