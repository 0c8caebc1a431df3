"""With `resample`, other tasks take the place of skipped groups."""

from __future__ import annotations

from pathlib import Path

import orjson

from rollyard.training.play.step_player import MAX_EXTRA
from tests.unit.training.play.test_resume import interrupt
from tests.unit.training.play.training_stack import ScriptedPolicy, training


def easy(*questions: int) -> ScriptedPolicy:
    """A policy that always solves these questions, and the others every second time."""
    return ScriptedPolicy(lambda question, count: "1" if question in questions else str(count % 2))


async def test_a_group_without_variance_is_replaced(tmp_path: Path) -> None:
    async with training(tmp_path, easy(0, 2), resample=True) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
        assert {row["number"] for row in run.rows(1)} == {0, 1, 2, 3}
    assert [group.skipped for group in batch.groups] == ["zero_variance", None, "zero_variance", None]
    assert batch.position["index"] == 4


async def test_without_resample_a_skipped_group_is_only_reported(tmp_path: Path) -> None:
    async with training(tmp_path, easy(0)) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
    assert [group.skipped for group in batch.groups] == ["zero_variance", None]


async def test_the_number_of_additional_tasks_is_limited(tmp_path: Path) -> None:
    async with training(tmp_path, easy(*range(20)), questions=20, resample=True) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
    assert len(batch.groups) == 2 * (1 + MAX_EXTRA)


async def test_the_data_may_end_before_all_groups_are_replaced(tmp_path: Path) -> None:
    async with training(tmp_path, easy(0, 1, 2), questions=3, resample=True, max_steps=0) as run:
        [batch] = await run.steps(source := run.source(), 1)
        assert await run.step(source, 2) is None
    assert len(batch.groups) == 3


async def test_a_run_that_stops_while_it_resamples_goes_on_with_the_same_tasks(tmp_path: Path) -> None:
    async with training(tmp_path, easy(0), resample=True) as run:
        await run.steps(first := run.source(), 1)
        await first.close()
        kept = [row for row in run.rows(1) if row["number"] != 2]
        run.paths.rollouts(1).write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in kept))
        interrupt(run, 1, played=2)
        asked = run.policy.asked.copy()
        [batch] = await run.steps(second := run.source(), 1)
        await second.close()
    assert run.policy.asked - asked == {2: 2}
    assert [group.skipped for group in batch.groups] == ["zero_variance", None, None]
