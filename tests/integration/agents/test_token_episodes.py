"""Agents over a model server that records tokens: what they send back, what a row says, how such episodes end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from pydantic import TypeAdapter

from rollyard.agents.base import Agent
from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Turn, Verdict, Verification, tool
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.rollout_types import RolloutRow
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.server.app import Context, Server
from rollyard.services.types import TOKEN_FIELDS, Json
from tests.support.in_process import Wired, agent, environment, wired
from tests.support.token_clients import CALL, TOOL, WORDS, turn_of
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode, spelled
from tests.support.typed_keys import untyped_keys

ROW: Json = {"responses_create_params": {"input": "go up", "tools": [TOOL]}}
AGENTS = [GameAgent, SimpleAgent]


class Wall(Environment[EnvironmentSettings]):
    """Nothing moves."""

    @tool
    async def push(self, actions: list[str]) -> str:
        """Push."""
        return "## the wall"

    async def verify(self, response: Verification) -> Verdict:
        """One for trying."""
        return Verdict(reward=1.0)


@asynccontextmanager
async def stack(
    engine: TokenEngine, kind: type[Agent[Any]] = GameAgent, hosted: type[Environment[Any]] = Wall, **settings: Any
) -> AsyncIterator[Wired]:
    chosen: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    chosen |= {"logprobs_mode": "processed_logprobs", "text_tool_parser": "hermes", "retry_pause_s": 0.0, **settings}

    def model(context: Context) -> Server:
        return VllmModel(VllmModelSettings(**chosen), context)

    async with wired({"world": environment(hosted), "model": model, "agent": agent(kind)}) as found:
        found.transport.mount("http://engine:1", engine)
        yield found


def turns(row: Json) -> list[Json]:
    """The items of a row that end a turn of the model."""
    return [item for item in row["response"]["output"] if item["type"] != "function_call_output"]


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("token_in", ["generate", "completions"])
async def test_a_row_carries_every_turns_tokens_and_each_prompt_begins_with_the_turn_before(
    kind: type[Agent[Any]], token_in: str
) -> None:
    async with stack(TokenEngine([CALL, CALL, CALL, WORDS]), kind, token_in=token_in) as found:
        row = await found.run(ROW)
    items = turns(row)
    assert [item["generation_token_ids"] for item in items] == [CALL, CALL, CALL, WORDS]
    for before, after in pairwise(items):
        assert after["prompt_token_ids"][: len(turn_of(before))] == turn_of(before)
    assert row["token_trail"] == {"turns": 3, "breaks": 0, "segments": 1}
    assert row["finish_reason"] == "answered"


async def test_messages_retokenized_are_breaks_on_the_row_and_the_collections_drift() -> None:
    progress = CollectionProgress(expected=2)
    for token_in in ("off", "generate"):
        async with stack(TokenEngine([CALL, CALL, WORDS]), token_in=token_in) as found:
            row: Any = await found.run(ROW)
        if token_in == "off":
            assert row["token_trail"] == {"turns": 2, "breaks": 2, "segments": 3}
            assert [item["token_trace"]["segment"] for item in turns(row)] == [0, 1, 2]
        progress.count(row)
    assert (progress.token_turns, progress.token_breaks, progress.drift) == (4, 2, 0.5)


@pytest.mark.parametrize("token_in", ["off", "generate"])
async def test_what_is_recorded_of_tokens_has_its_type_and_no_key_that_is_not_in_it(token_in: str) -> None:
    async with stack(TokenEngine([CALL, WORDS]), token_in=token_in) as found:
        row = await found.run(ROW)
    TypeAdapter(RolloutRow).validate_python(row, strict=True)
    assert list(untyped_keys(row, RolloutRow)) == []
    assert all(TOKEN_FIELDS[0] in item and item["token_trace"]["sampling"] for item in turns(row))


async def test_a_row_without_tokens_reports_no_token_history_and_the_drift_is_unknown() -> None:
    progress = CollectionProgress(expected=1)
    async with stack(TokenEngine([CALL, WORDS]), return_token_id_information=False) as found:
        row: Any = await found.run(ROW)
    progress.count(row)
    assert "token_trail" not in row
    assert progress.drift is None


async def test_a_row_names_the_constraints_that_any_of_its_turns_was_sampled_under() -> None:
    async with stack(TokenEngine([CALL, WORDS]), extra_body={"top_p": 0.9, "min_tokens": 2}) as found:
        row = await found.run(ROW)
    assert row["token_trail"]["constrained"] == ["min_tokens", "top_p"]


async def test_a_single_turn_has_a_token_history_without_later_turns() -> None:
    async with stack(TokenEngine([WORDS])) as found:
        row = await found.run(ROW)
    assert row["token_trail"] == {"turns": 0, "breaks": 0, "segments": 1}


async def test_agents_send_the_last_turns_tokens_back_and_no_others() -> None:
    """All of them would make each request as long as all before."""
    asked: list[Json] = []

    class Listening(VllmModel):
        async def responses(self, request: Json, call: Any) -> Any:
            asked.append({"input": [dict(item) for item in request["input"]]})
            return await super().responses(request, call)

    chosen = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    builds = {"world": environment(Wall), "agent": agent(GameAgent)}
    model = {"model": lambda context: Listening(VllmModelSettings(**chosen), context)}
    async with wired({**builds, **model}) as found:
        found.transport.mount("http://engine:1", TokenEngine([CALL, CALL, CALL, WORDS]))
        row = await found.run(ROW)
    held = [[item for item in request["input"] if "generation_token_ids" in item] for request in asked]
    assert [[item["call_id"] for item in items] for items in held] == [
        [],
        *([item["call_id"]] for item in turns(row)[:3]),
    ]


@pytest.mark.parametrize("kind", AGENTS)
async def test_all_calls_of_an_episode_name_it_and_two_episodes_have_two_names(kind: type[Agent[Any]]) -> None:
    engine = TokenEngine([CALL, WORDS])
    async with stack(engine, kind) as found:
        await found.run(ROW)
        first = {headers["x-session-id"] for headers in engine.headers}
        await found.run(ROW)
    assert len(first) == 1
    assert len({headers["x-session-id"] for headers in engine.headers}) == 2


@pytest.mark.parametrize("kind", AGENTS)
async def test_an_unreadable_call_ends_the_episode_by_its_own_name(kind: type[Agent[Any]]) -> None:
    async with stack(TokenEngine([CALL, [*encode('<tool_call>{"name": '), END]]), kind) as found:
        row = await found.run(ROW)
    assert (row["finish_reason"], row["truncated"], row["reward"]) == ("unreadable_call", False, 1.0)
    assert row["timings"]["tool_calls"] == 1


@pytest.mark.parametrize("kind", AGENTS)
async def test_a_call_that_the_token_limit_cut_ends_the_episode_by_the_limits_name(kind: type[Agent[Any]]) -> None:
    async with stack(TokenEngine([CALL, encode('<tool_call>{"name": ')]), kind) as found:
        row = await found.run(ROW)
    assert (row["finish_reason"], row["truncated"]) == ("length", True)


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("token_in", ["generate", "completions", "off"])
async def test_a_conversation_that_outgrows_the_context_ends_the_episode_and_is_measured(
    kind: type[Agent[Any]], token_in: str
) -> None:
    engine = TokenEngine([CALL], longest=250)
    async with stack(engine, kind, token_in=token_in) as found:
        row = await found.run(ROW)
    assert (row["finish_reason"], row["truncated"], row["reward"]) == ("context_overflow", True, 1.0)
    assert row["timings"]["model_calls"] == len([item for item in turns(row) if "generation_token_ids" in item]) > 0
    assert row["response"]["output"][-1]["type"] == "function_call_output"


async def test_a_task_that_does_not_fit_at_all_is_a_failure_and_no_episode() -> None:
    async with stack(TokenEngine([CALL], longest=20)) as found:
        with pytest.raises(Failure) as caught:
            await found.run(ROW)
    assert (caught.value.kind, caught.value.terminal) == (FailureKind.CONTEXT_OVERFLOW, True)
    assert caught.value.problem.server == "model"


async def test_a_turn_without_tokens_fails_the_episode_and_is_never_a_reward() -> None:
    engine = TokenEngine([[*spelled("hm"), END]], gives_ids=False)
    async with stack(engine, max_attempts=1) as found:
        with pytest.raises(Failure) as caught:
            await found.run(ROW)
    assert caught.value.kind is FailureKind.MALFORMED_ANSWER


class Talk(Environment[EnvironmentSettings]):
    """Answers every message, three times."""

    turns = 0

    async def reset(self) -> tuple[str, Json]:
        """Begin."""
        return "begin", {}

    async def turn(self, text: str) -> Turn:
        """Go on."""
        self.turns += 1
        return Turn("go on", 0.5, self.turns == 3, False, {})


async def test_turns_with_observations_between_them_are_recorded_as_one_sequence() -> None:
    async with stack(TokenEngine([WORDS]), TurnAgent, Talk, token_in="generate") as found:
        row = await found.run({"responses_create_params": {"input": "go"}})
    items = [item for item in row["response"]["output"] if item["role"] == "assistant"]
    assert [item["generation_token_ids"] for item in items] == [WORDS] * 3
    for before, after in pairwise(items):
        assert after["prompt_token_ids"][: len(turn_of(before))] == turn_of(before)
    assert row["token_trail"] == {"turns": 2, "breaks": 0, "segments": 1}
    assert (row["step_rewards"], row["reward"]) == ([0.5] * 3, 1.5)
