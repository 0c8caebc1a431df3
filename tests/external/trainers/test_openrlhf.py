"""The executor has the form of OpenRLHF's own, and its responses have the fields that theirs have."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from copy import deepcopy
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rollyard.interop.openrlhf import agent_executor
from rollyard.records.errors import OperatorError
from tests.external.trainers.wheel_sources import module_of
from tests.unit.interop.scripted_session import answer, playing, task

NAMES: Any = {"ABC": ABC, "abstractmethod": abstractmethod, "deepcopy": deepcopy}
CLASSES = ("AgentExecutorBase", "AgentInstanceBase", "MultiTurnAgentExecutor")


@pytest.fixture(autouse=True, scope="module")
def theirs() -> ModuleType:
    return module_of("openrlhf.utils.agent", *CLASSES, **NAMES)


def sampling(logprobs: int | None = 1, temperature: float = 1.0) -> Any:
    return SimpleNamespace(temperature=temperature, top_p=1.0, top_k=-1, max_tokens=None, logprobs=logprobs)


async def executed(*kinds: str, logprobs: int | None = 1, constrained: str = "refuse") -> list[dict[str, Any]]:
    """The responses of samples of one prompt, started together as in OpenRLHF; their label names the first kind."""
    remaining = iter(kinds)

    async def one_by_one(request: Any, attempt: int) -> Any:
        return await answer({**request, "kind": next(remaining)}, attempt)

    label, tokenizer = json.dumps(task(kinds[0])), SimpleNamespace(eos_token_id=7)
    with playing(one_by_one, constrained=constrained, max_attempts=1) as (player, _):
        executor = agent_executor(player)()
        calls = (
            executor.execute("Solve it.", label, sampling(logprobs), 64, tokenizer, None, images=None) for _ in kinds
        )
        return list(await asyncio.gather(*calls))


async def theirs_response(module: ModuleType) -> dict[str, Any]:
    """The response of their executor for one turn of an instance."""

    class Instance(module.AgentInstanceBase):  # type: ignore[name-defined,misc]
        def __init__(self) -> None: ...

        async def step(self, state_dict: Any, **_: Any) -> Any:
            reward = SimpleNamespace(item=lambda: 1.0)
            return {"rewards": reward, "scores": 1.0, "environment_feedback": "", "done": True}

    class Engine:
        async def generate(self, *_: Any, **__: Any) -> Any:
            log_probs = [{5: SimpleNamespace(logprob=-0.5)}]
            output = SimpleNamespace(token_ids=[5], text="a", finish_reason="stop", logprobs=log_probs)
            return SimpleNamespace(outputs=[output])

    def tokenize(text: str, **_: Any) -> Any:
        ids = SimpleNamespace(tolist=lambda: [1] * len(text))
        return {"input_ids": [ids]}

    executor = module.MultiTurnAgentExecutor(Instance)
    found: dict[str, Any] = await executor.execute("ab", "l", sampling(), 64, tokenize, Engine())
    return found


async def test_responses_have_the_fields_of_theirs(theirs: ModuleType) -> None:
    expected, [found] = await theirs_response(theirs), await executed("won")
    assert found.keys() == expected.keys()
    for name in ("observation_tokens", "action_ranges", "rollout_log_probs", "reward", "scores", "truncated"):
        assert type(found[name]) is type(expected[name]), name
    assert len(expected["rollout_log_probs"]) == len(expected["observation_tokens"])


async def test_actions_are_the_tokens_of_the_policy() -> None:
    [found] = await executed("won")
    assert found["observation_tokens"] == [1, 2, 3, 4, 9, 5] and found["action_ranges"] == [(2, 4), (5, 6)]
    assert found["rollout_log_probs"] == [0.0, 0.0, -0.3, -0.4, 0.0, -0.5] and found["reward"] == 1.0


async def test_a_failed_sample_has_no_action_and_the_mean_reward_of_the_others() -> None:
    found = await executed("won", "broken", "lost")  # in the order in which the three reach the scripted answers
    failed, lost, won = sorted(found, key=lambda each: (each["extra_logs"]["counts"], each["reward"]))
    assert [each["reward"] for each in (failed, lost, won)] == [0.625, 0.25, 1.0]
    assert failed["action_ranges"] == [] and failed["extra_logs"]["counts"] == 0.0


async def test_log_probabilities_are_only_returned_if_they_are_asked_for() -> None:
    [found] = await executed("won", logprobs=None)
    assert found["rollout_log_probs"] is None


async def test_importance_weights_are_needed_to_reweight_constrained_turns() -> None:
    with pytest.raises(OperatorError, match="is_correction_level"):
        await executed("constrained", logprobs=None, constrained="reweight")


def test_the_class_is_a_subclass_of_theirs(theirs: ModuleType) -> None:
    with playing(answer) as (player, _):
        assert issubclass(agent_executor(player), theirs.AgentExecutorBase)
