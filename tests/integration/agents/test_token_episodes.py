"""Agents over a model server that records tokens: what they send back, what rollouts record, how episodes end."""

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
from rollyard.records.errors import FailureKind
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import TOKEN_FIELDS, Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Turn, Verdict, Verification, tool
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.server.app import Context, Server
from tests.support.fixtures import failure_of
from tests.support.in_process import InProcessServers, episode_servers
from tests.support.token_clients import CALL_TURN, TEXT_TURN, TOOL, turn_tokens
from tests.support.token_engine import TokenEngine
from tests.support.toy_tokenizer import END, encode, encode_letters
from tests.support.typed_keys import untyped_keys

ROW: Json = {"responses_create_params": {"input": "go up", "tools": [TOOL]}}
AGENTS = [GameAgent, SimpleAgent]


class Wall(Environment[EnvironmentSettings]):
    @tool
    async def push(self, actions: list[str]) -> str:
        """Push."""
        return "## the wall"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


@asynccontextmanager
async def stack(
    engine: TokenEngine, kind: type[Agent[Any]] = GameAgent, env_class: type[Environment[Any]] = Wall, **settings: Any
) -> AsyncIterator[InProcessServers]:
    options: Json = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    options |= {"logprobs_mode": "processed_logprobs", "text_tool_parser": "hermes", "retry_pause_s": 0.0, **settings}

    def model(context: Context) -> Server:
        return VllmModel(VllmModelSettings(**options), context)

    async with episode_servers(env_class, model, kind) as wired_stack:
        wired_stack.transport.mount("http://engine:1", engine)
        yield wired_stack


async def played(engine: TokenEngine, *kinds: Any, row: Json = ROW, **settings: Any) -> Any:
    async with stack(engine, *kinds, **settings) as wired_stack:
        return await wired_stack.run(row)


def turns(row: Json) -> list[Json]:
    return [item for item in row["response"]["output"] if item["type"] != "function_call_output"]


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("token_in", ["generate", "completions"])
async def test_a_rollout_holds_the_tokens_of_every_turn_and_each_prompt_starts_with_the_previous_turn(
    kind: type[Agent[Any]], token_in: str
) -> None:
    row = await played(TokenEngine([CALL_TURN, CALL_TURN, CALL_TURN, TEXT_TURN]), kind, token_in=token_in)
    items = turns(row)
    assert [item["generation_token_ids"] for item in items] == [CALL_TURN, CALL_TURN, CALL_TURN, TEXT_TURN]
    for before, after in pairwise(items):
        assert after["prompt_token_ids"][: len(turn_tokens(before))] == turn_tokens(before)
    assert row["token_trail"] == {"turns": 3, "breaks": 0, "segments": 1}
    assert row["finish_reason"] == "answered"


async def test_retokenized_messages_count_as_breaks_of_the_rollout_and_drift_of_the_collection() -> None:
    progress = CollectionProgress(expected=2)
    for token_in in ("off", "generate"):
        async with stack(TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN]), token_in=token_in) as wired_stack:
            row: Any = await wired_stack.run(ROW)
        if token_in == "off":
            assert row["token_trail"] == {"turns": 2, "breaks": 2, "segments": 3}
            assert [item["token_trace"]["segment"] for item in turns(row)] == [0, 1, 2]
        progress.count(row)
    assert (progress.token_turns, progress.token_breaks) == (4, 2)


@pytest.mark.parametrize("token_in", ["off", "generate"])
async def test_the_recorded_token_fields_match_their_types_exactly(token_in: str) -> None:
    row = await played(TokenEngine([CALL_TURN, TEXT_TURN]), token_in=token_in)
    TypeAdapter(RolloutRow).validate_python(row, strict=True)
    assert list(untyped_keys(row, RolloutRow)) == []
    assert all(TOKEN_FIELDS[0] in item and item["token_trace"]["sampling"] for item in turns(row))


async def test_a_rollout_without_tokens_has_no_token_history_and_no_drift() -> None:
    progress = CollectionProgress(expected=1)
    row = await played(TokenEngine([CALL_TURN, TEXT_TURN]), return_token_id_information=False)
    progress.count(row)
    assert "token_trail" not in row
    assert progress.token_turns == 0


async def test_a_rollout_names_the_sampling_constraints_of_its_turns() -> None:
    row = await played(TokenEngine([CALL_TURN, TEXT_TURN]), extra_body={"top_p": 0.9, "min_tokens": 2})
    assert row["token_trail"]["constrained"] == ["min_tokens", "top_p"]


async def test_agents_send_back_only_the_tokens_of_the_last_turn() -> None:
    requests: list[Json] = []

    class Recording(VllmModel):
        async def responses(self, request: Json, call: Any) -> Any:
            requests.append({"input": [dict(item) for item in request["input"]]})
            return await super().responses(request, call)

    options = {"base_url": "http://engine:1/v1", "model": "tiny", "return_token_id_information": True}
    model = lambda context: Recording(VllmModelSettings(**options), context)  # noqa: E731
    async with episode_servers(Wall, model, GameAgent) as wired_stack:
        wired_stack.transport.mount("http://engine:1", TokenEngine([CALL_TURN, CALL_TURN, CALL_TURN, TEXT_TURN]))
        row = await wired_stack.run(ROW)
    held = [[item for item in request["input"] if "generation_token_ids" in item] for request in requests]
    last = [[item["call_id"]] for item in turns(row)[:3]]
    assert [[item["call_id"] for item in items] for items in held] == [[], *last]


@pytest.mark.parametrize("kind", AGENTS)
async def test_all_calls_of_an_episode_share_a_session_id_that_no_other_episode_has(kind: type[Agent[Any]]) -> None:
    engine = TokenEngine([CALL_TURN, TEXT_TURN])
    async with stack(engine, kind) as wired_stack:
        await wired_stack.run(ROW)
        first = {headers["x-session-id"] for headers in engine.headers}
        await wired_stack.run(ROW)
    assert len(first) == 1
    assert len({headers["x-session-id"] for headers in engine.headers}) == 2


@pytest.mark.parametrize("kind", AGENTS)
async def test_an_unreadable_call_ends_the_episode_with_its_own_finish_reason(kind: type[Agent[Any]]) -> None:
    row = await played(TokenEngine([CALL_TURN, [*encode('<tool_call>{"name": '), END]]), kind)
    assert (row["finish_reason"], row["truncated"], row["reward"]) == ("unreadable_call", False, 1.0)
    assert row["timings"]["tool_calls"] == 1


@pytest.mark.parametrize("kind", AGENTS)
async def test_a_call_cut_off_at_the_token_limit_ends_the_episode_with_length(kind: type[Agent[Any]]) -> None:
    row = await played(TokenEngine([CALL_TURN, encode('<tool_call>{"name": ')]), kind)
    assert (row["finish_reason"], row["truncated"]) == ("length", True)


@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("token_in", ["generate", "completions", "off"])
async def test_a_conversation_that_exceeds_the_context_ends_the_episode_and_is_still_measured(
    kind: type[Agent[Any]], token_in: str
) -> None:
    engine = TokenEngine([CALL_TURN], max_model_len=250)
    row = await played(engine, kind, token_in=token_in)
    assert (row["finish_reason"], row["truncated"], row["reward"]) == ("context_overflow", True, 1.0)
    assert row["timings"]["model_calls"] == len([item for item in turns(row) if "generation_token_ids" in item]) > 0
    assert row["response"]["output"][-1]["type"] == "function_call_output"


async def test_a_task_that_exceeds_the_context_at_the_first_turn_is_a_failure() -> None:
    async with stack(TokenEngine([CALL_TURN], max_model_len=20)) as wired_stack:
        failure = await failure_of(wired_stack.run(ROW))
    assert (failure.kind, failure.terminal) == (FailureKind.CONTEXT_OVERFLOW, True)
    assert failure.problem.server == "model"


async def test_a_turn_without_tokens_fails_the_episode_instead_of_earning_a_reward() -> None:
    engine = TokenEngine([[*encode_letters("hm"), END]], returns_token_ids=False)
    async with stack(engine, max_attempts=1) as wired_stack:
        failure = await failure_of(wired_stack.run(ROW))
    assert failure.kind is FailureKind.MALFORMED_ANSWER


class Talk(Environment[EnvironmentSettings]):
    turns = 0

    async def reset(self) -> tuple[str, Json]:
        return "begin", {}

    async def turn(self, text: str) -> Turn:
        self.turns += 1
        return Turn("go on", 0.5, self.turns == 3, False, {})


async def test_turns_separated_by_observations_are_recorded_as_one_sequence() -> None:
    async with stack(TokenEngine([TEXT_TURN]), TurnAgent, Talk, token_in="generate") as wired_stack:
        row = await wired_stack.run({"responses_create_params": {"input": "go"}})
    items = [item for item in row["response"]["output"] if item["role"] == "assistant"]
    assert [item["generation_token_ids"] for item in items] == [TEXT_TURN] * 3
    for before, after in pairwise(items):
        assert after["prompt_token_ids"][: len(turn_tokens(before))] == turn_tokens(before)
    assert row["token_trail"] == {"turns": 2, "breaks": 0, "segments": 1}
    assert (row["step_rewards"], row["reward"]) == ([0.5] * 3, 1.5)
