"""Rewards from weighted parts: their sum, and what never becomes a reward."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import orjson
import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict, Verification
from rollyard.resources_servers.rubric import Part, Rubric, Score
from tests.support.in_process import Script, agent, environment, in_process_servers, says

TASK: Json = {"gold": "42"}
NOT_A_DICT: Any = ["x"]


def correct(task: Any, response: Verification) -> bool:
    return task["gold"] in response.text


async def brief(task: Any, response: Verification) -> float:
    await asyncio.sleep(0)
    return 0.5 if len(response.text) < 100 else 0.0


def answered(text: str) -> Verification:
    return Verification(orjson.dumps({"response": {"output": [says(text)]}}))


async def test_the_reward_is_the_sum_of_the_components() -> None:
    rubric = Rubric(correct=(1, correct), brief=(0.2, brief), seen=(0, brief), long=(-1.0, brief))
    verdict = (await rubric.verdict(TASK, answered("42"))).model_dump()
    assert verdict["reward"] == sum(verdict["reward_components"].values()) == pytest.approx(0.6)
    assert verdict["reward_components"] == {"correct": 1.0, "brief": 0.1, "seen": 0.0, "long": -0.5}
    assert verdict["scores"] == {"correct": 1.0, "brief": 0.5, "seen": 0.5, "long": 0.5}
    assert verdict.get("success") is None


@pytest.mark.parametrize(
    ("success", "text", "expected"),
    [("correct", "42", True), ("correct", "41", False), ("brief", "42", False), (1.0, "42", True), (1.2, "42", False)],
)
async def test_success_is_a_parts_full_score_or_a_least_reward(success: str | float, text: str, expected: bool) -> None:
    rubric = Rubric(correct=(1.0, correct), brief=(0.2, brief), success=success)
    assert (await rubric.verdict(TASK, answered(text))).model_dump()["success"] is expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "at least one part"),
        *(({"a": (weight, correct)}, f"'a' has the weight {weight}") for weight in (math.nan, math.inf, True)),
        ({"a": (1.0, "correct")}, r"expected \(weight, function\)"),
        ({"a": correct}, r"expected \(weight, function\)"),
        ({"correct": (1.0, correct), "success": "corect"}, "did you mean 'correct'"),
        ({"correct": (1.0, correct), "success": math.nan}, "finite number"),
        ({"success": (1.0, correct), "a": (1.0, correct)}, "a part's name or a finite number"),
    ],
)
def test_an_invalid_rubric_is_rejected_on_construction(arguments: Any, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        Rubric(**arguments)


def raising(error: BaseException) -> Part:
    def part(task: Any, response: Verification) -> float:
        raise error

    return part


def returning(value: Any) -> Part:
    return lambda task, response: value


@pytest.mark.parametrize(
    ("part", "words"),
    [
        *((returning(value), "returned") for value in (1.5, -0.1, math.nan, math.inf, None, "1", [1])),
        *((returning(value), "returned") for value in (Score(2.0), Score(math.nan), Score(1.0, NOT_A_DICT))),
        (raising(ValueError("no")), "ValueError: no"),
        (raising(SystemExit("no")), "SystemExit: no"),
    ],
)
async def test_a_part_without_a_score_is_a_failure_that_names_it(part: Part, words: str) -> None:
    with pytest.raises(Failure, match=f"part 'odd' .*{words}") as failed:
        await Rubric(fine=(1.0, correct), odd=(1.0, part)).verdict(TASK, answered("42"))
    assert failed.value.kind is FailureKind.SERVER_ERROR


@pytest.mark.parametrize("error", [BadTask("no gold"), Failure(FailureKind.TIMEOUT, "the judge", server="judge")])
async def test_bad_task_and_failure_pass_unchanged(error: Exception) -> None:
    with pytest.raises(type(error)) as failed:
        await Rubric(odd=(1.0, raising(error))).verdict(TASK, answered("42"))
    assert failed.value is error


@pytest.mark.parametrize("error", [RecursionError(), MemoryError(), OverflowError()])
async def test_an_answer_that_is_too_large_for_a_part_scores_zero_without_a_retry(error: Exception) -> None:
    for weight, reward in ((1.0, 1.0), (-0.5, 0.5)):  # a penalty is paid in full
        rubric = Rubric(correct=(1.0, correct), odd=(weight, raising(error)))
        assert (await rubric.verdict(TASK, answered("42"))).reward == reward


async def test_a_failure_ends_the_parts_that_still_run() -> None:
    ended: list[str] = []

    async def slow(task: Any, response: Verification) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("slow")
        return 1.0

    with pytest.raises(Failure):
        await Rubric(slow=(1.0, slow), odd=(1.0, raising(ValueError("no")))).verdict(TASK, answered("42"))
    await asyncio.sleep(0)
    assert ended == ["slow"]


async def test_fields_of_a_score_are_on_the_verdict_and_never_replace_each_other() -> None:
    told = Rubric(a=(1.0, returning(Score(1.0, {"why": "good"}))))
    verdict = (await told.verdict(TASK, answered("42"), extracted_answer="42")).model_dump()
    assert (verdict["why"], verdict["extracted_answer"]) == ("good", "42")
    with pytest.raises(Failure, match="reward_components, which is already in use"):
        await told.verdict(TASK, answered("42"), reward_components={})
    twice = Rubric(a=(1.0, returning(Score(1.0, {"why": 1}))), b=(1.0, returning(Score(1.0, {"why": 2}))))
    own = Rubric(a=(1.0, returning(Score(1.0, {"reward": 9.0}))))
    for rubric in (twice, own):
        with pytest.raises(Failure, match="already in use"):
            await rubric.verdict(TASK, answered("42"))


class Asked(Environment[EnvironmentSettings]):
    """Scored by its own methods."""

    def is_right(self, response: Verification) -> bool:
        return response.text == str(self.task["gold"])

    async def verify(self, response: Verification) -> Verdict:
        return await PARTS.verdict(self, response)


PARTS = Rubric(right=(1.0, Asked.is_right), success="right")


async def test_methods_of_an_environment_are_parts_and_the_components_reach_the_rollout() -> None:
    make = {"environment": environment(Asked), "model": Script([[says("42")]]).model, "agent": agent(SimpleAgent)}
    async with in_process_servers(make) as stack:
        rollout = await stack.run({"responses_create_params": {"input": "?"}, **TASK})
    assert (rollout["reward"], rollout["success"], rollout["reward_components"]) == (1.0, True, {"right": 1.0})


@pytest.mark.parametrize(("weight", "reward"), [(1.0, 0.25), (-1.0, -0.75)])
async def test_a_score_may_be_another_one_as_a_penalty(weight: float, reward: float) -> None:
    verdict = await Rubric(odd=(weight, returning(Score(0.25, {}, as_penalty=0.75)))).verdict(TASK, answered("42"))
    assert verdict.reward == reward
