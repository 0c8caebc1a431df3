"""Episodes of a step become the groups of a batch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rollyard.training.batch import Batch
from tests.unit.training.play.training_stack import Training, training


def questions(run: Training, step: int) -> list[int]:
    """The questions of a step, in the order of its tasks."""
    return [row["number"] for row in sorted(run.rows(step), key=lambda row: row["_ng_task_index"])][::2]


def rewards(batch: Batch) -> list[list[float]]:
    return [[member.reward for member in group.members] for group in batch.groups]


async def test_a_step_has_groups_of_the_next_tasks(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        first, second = await run.steps(source := run.source(), 2)
        await source.close()
        assert (questions(run, 1), questions(run, 2)) == ([0, 1], [2, 3])
    assert (first.step, second.step) == (1, 2)
    assert [sorted(found) for found in rewards(first)] == [[0.0, 1.0]] * 2
    assert all(sorted(group.advantages)[1] == pytest.approx(0.5 / (0.5**0.5 + 1e-4)) for group in first.groups)


async def test_members_have_the_recorded_tokens(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
    sequences = [sequence for group in batch.groups for member in group.members for sequence in member.sequences]
    assert len(sequences) == 4
    assert {version for sequence in sequences for version in sequence.versions} == {"step_000000"}


async def test_every_row_is_used_once_per_epoch_and_the_last_batch_is_short(tmp_path: Path) -> None:
    async with training(tmp_path, questions=3, max_steps=0) as run:
        batches = await run.steps(source := run.source(), 2)
        assert await run.step(source, 3) is None
        assert await run.step(source, 3) is None
    assert [len(batch.groups) for batch in batches] == [2, 1]


async def test_the_second_epoch_follows_in_the_same_step(tmp_path: Path) -> None:
    async with training(tmp_path, questions=3, max_steps=0, epochs=2) as run:
        await run.steps(source := run.source(), 3)
        assert await run.step(source, 4) is None
        assert [questions(run, step) for step in (1, 2, 3)] == [[0, 1], [2, 0], [1, 2]]


async def test_a_task_that_occurs_twice_in_a_step_has_two_groups(tmp_path: Path) -> None:
    async with training(tmp_path, questions=1) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
    assert [len(group.members) for group in batch.groups] == [2, 2]


async def test_training_goes_on_from_the_position_of_a_batch(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        [batch] = await run.steps(source := run.source(), 1)
        await source.close()
        await run.steps(resumed := run.source(batch.position), 1, first=2)
        await resumed.close()
        assert questions(run, 2) == [2, 3]


async def test_seeds_of_a_group_follow_each_other_and_are_the_same_in_every_run(tmp_path: Path) -> None:
    async with training(tmp_path) as run:

        async def seeds() -> list[int]:
            run.policy.requests.clear()
            await run.steps(source := run.source(seeded=True), 1)
            await source.close()
            sent = [body["sampling_params"] for path, body in run.policy.requests if path.endswith("/generate")]
            return sorted(params["seed"] for params in sent if "seed" in params)

        first = await seeds()
        run.paths.rollouts(1).parent.rename(tmp_path / "first")
        assert await seeds() == first
    assert len(set(first)) == 4
    assert sum(after - before == 1 for before, after in pairwise(first)) == 2


async def test_steps_must_be_consecutive(tmp_path: Path) -> None:
    async with training(tmp_path, max_staleness=2) as run:
        await run.step(source := run.source(), 1)
        with pytest.raises(ValueError, match=r"step 3 .*step 1"):
            await source.next_batch(3)
        await source.close()
