"""A resumed run uses the rollouts that it has, and only those that its own weights played."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import RunError
from rollyard.training.step_files import StepFiles
from tests.support.stacks import keys_of
from tests.support.waiting import short_s, until
from tests.unit.training.scripted_training import (
    ScriptedPolicy,
    Training,
    training,
    write_questions,
)


def interrupt(run: Training, step: int, played: int = 0) -> None:
    """Restore the record of a step that a killed run leaves."""
    files = StepFiles(run.paths.rollouts(step))
    record = files.record()
    assert record is not None
    files.write(record.model_copy(update={"played": played, "complete": False}))


def renamed(run: Training) -> set[str]:
    return {path.name.split(".")[0] for path in run.paths.rollouts(1).parent.glob("step_??????.jsonl.*")}


async def test_a_complete_step_is_not_played_again(tmp_path: Path) -> None:
    """Neither are the rollouts of it that failed."""
    policy = ScriptedPolicy(lambda question, count: "500" if (question, count) == (0, 0) else str(count % 2))
    async with training(tmp_path, policy, group_size=3, max_attempts=1) as run:
        before = await run.played(2)
        asked = Counter(run.policy.asked)
        after = await run.played(2)
    assert [batch.groups for batch in after] == [batch.groups for batch in before]
    assert [batch.position for batch in after] == [batch.position for batch in before]
    assert run.policy.asked == asked


async def test_a_run_that_stops_within_a_step_goes_on_with_the_missing_rollouts(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    policy.hangs = lambda question, count: question == 1
    async with training(tmp_path, policy) as run:
        waiting = asyncio.create_task(run.step(source := run.source(), 1))
        await until(lambda: run.paths.rollouts(1).exists() and len(run.rows(1)) == 2)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        policy.hangs = lambda question, count: False
        await run.steps(source, 1)
        await source.close()
        assert keys_of(run.rows(1)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert policy.asked[0] == 2


async def test_a_timeout_of_the_policy_stays_one_in_a_resumed_run(tmp_path: Path) -> None:
    policy = ScriptedPolicy()
    policy.hangs = lambda question, count: (question, count) == (0, 0)
    async with training(tmp_path, policy, model_settings={"request_timeout_s": short_s()}) as run:
        before = await run.played()
        interrupt(run, 1)
        after = await run.played()
    assert after[0].groups == before[0].groups
    assert policy.asked[0] == 2


async def test_rollouts_of_other_settings_are_set_aside_and_the_difference_is_named(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        await run.played(2)
        changed: dict[str, Any] = {"seed": 1, "optimizer": {"learning_rate": 1}}
        await run.played(**changed)
        assert renamed(run) == {"step_000001", "step_000002"}
        await run.played(**changed, responses_create_params={"temperature": 0.5})
    assert run.policy.asked.total() == 16
    assert "step_000001.jsonl" in run.lines[0] and "(optimizer, seed)" in run.lines[0]
    assert re.search(r"responses_create_params\.temperature: 1\.0 .*, 0\.5 ", run.lines[-1])
    assert "overwrite" not in run.lines[-1]


async def test_rollouts_of_weights_that_the_run_does_not_have_are_never_used(tmp_path: Path) -> None:
    async with training(tmp_path) as run:
        run.policy.updates = 3
        with pytest.raises(RunError, match=r"\b3 updates.* step 1 .*\b0\b"):
            await run.source().next_batch(1)
        [batch] = await run.played()
        assert renamed(run) == {"step_000001"}
    assert all(member.sequences[0].versions[-1] == "step_000000" for group in batch.groups for member in group.members)


async def test_a_step_that_is_played_again_invalidates_later_steps_and_evaluations(
    tmp_path: Path,
) -> None:
    async with training(tmp_path) as run:
        await run.played(3)
        evaluations = [run.paths.evaluation(step) for step in (1, 2)]
        evaluations[0].parent.mkdir()
        for path in evaluations:
            path.write_text("{}\n")
        StepFiles(run.paths.rollouts(2)).set_aside()
        await run.steps(second := run.source(), 2)
        assert renamed(run) == {"step_000002", "step_000003"}
        await second.close()
        assert [path.exists() for path in evaluations] == [True, False]
        assert any("evaluation step_000002.jsonl" in line for line in run.lines)
    assert run.policy.asked.total() == 16


async def test_a_dataset_or_a_file_that_another_program_changes_stops_the_run(tmp_path: Path) -> None:
    def spoil(question: int, count: int) -> str:
        with run.paths.rollouts(2).open("ab") as file:
            file.write(b"{}\n")
        return "1"

    async with training(tmp_path) as run:
        await run.steps(source := run.source(), 1)
        run.policy.answer = spoil
        with pytest.raises(RunError, match=r"step_000002\.jsonl .*\d+ bytes"):
            await run.step(source, 2)
        write_questions(run.data, [0, 1, 7, 8, 9, 10])
        with pytest.raises(RunError, match=r"questions\.jsonl: line 3 changed"):
            await run.step(source, 2)
