from __future__ import annotations

import contextlib
from typing import Any

import orjson
import pytest

from rollyard.agents.base import Agent, AgentSettings
from rollyard.agents.episode import Episode
from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.simple_agent.app import DEFAULT_MAX_STEPS, SimpleAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import FinishReason, Json
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Verdict, Verification, tool
from rollyard.services.http.request import HttpResponse
from rollyard.services.rollouts.run_answer import RESPONSE_BYTES_HEADER
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says

ROW: Json = {"responses_create_params": {"input": "Play."}, "level": 3}


class Counter(Environment[EnvironmentSettings]):
    closed: list[str] = []  # noqa: RUF012 - read by tests

    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        if task.get("level") == 13:
            raise BadTask("level 13 does not exist; levels go to 12")
        self.count = 0

    @tool
    async def add(self, amount: int = 1) -> Json:
        """Add to the count."""
        self.count += amount
        return {"count": self.count, "done": self.count >= self.task["level"]}

    @tool
    async def cheer(self) -> str:
        """Plain text with quotes."""
        return 'well "done"'

    @tool
    async def explode(self) -> Json:
        """A bug in the environment."""
        raise RuntimeError("the environment is broken")

    async def verify(self, response: Verification) -> Verdict:
        reward = float("nan") if self.task.get("nan") else float(self.count)
        return Verdict(reward=reward, success=self.count >= self.task["level"])

    async def close(self) -> None:
        self.closed.append("closed")


def counting(script: Script, kind: Any = GameAgent, **settings: Any) -> Any:
    Counter.closed.clear()
    return episode_servers(Counter, script, kind, **settings)


async def played(script: Script, kind: Any = GameAgent, row: Json = ROW, **settings: Any) -> Json:
    async with counting(script, kind, **settings) as stack:
        rollout: Json = await stack.run(row)
    return rollout


async def test_a_rollout_holds_the_request_the_whole_episode_the_verdict_and_the_keys_of_the_row() -> None:
    script = Script([[calls("add", {"amount": 2}, "a")], [says("thinking"), calls("add", {"amount": 1}, "b")]])
    rollout = await played(script)
    kinds = [item["type"] for item in rollout["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message", "function_call", "function_call_output"]
    assert (rollout["reward"], rollout["success"], rollout["level"]) == (3.0, True, 3)
    assert rollout["responses_create_params"]["input"] == ROW["responses_create_params"]["input"]
    assert (rollout["finish_reason"], rollout["truncated"]) == ("done", False)


async def test_the_response_is_at_the_end_of_the_rollout_and_a_header_holds_its_length() -> None:
    async with counting(Script([[calls("roll", {})], [says("4")]])) as stack:
        answer = await stack.post("agent", "/run", {**ROW, "response": "from an earlier rollout"})
    length = int(answer.headers[RESPONSE_BYTES_HEADER])
    assert orjson.loads(answer.body[-1 - length : -1]) == orjson.loads(answer.body)["response"]


async def test_usage_is_summed_over_the_turns() -> None:
    rollout = await played(Script([[calls("add", {})], [calls("add", {})], [calls("add", {})]]))
    assert rollout["response"]["usage"] == {"input_tokens": 30, "output_tokens": 6, "total_tokens": 36}


async def test_every_turn_sends_the_whole_conversation_so_far() -> None:
    script = Script([[calls("add", {}, "a")], [says("enough")]])
    await played(script)
    start, call, output = script.requests[1]["input"]
    assert start == {"role": "user", "content": "Play."}
    assert call["call_id"] == output["call_id"] == "a"
    assert orjson.loads(output["output"]) == {"count": 1, "done": False}


async def test_the_game_agent_runs_all_calls_of_the_turn_before_it_stops_on_done() -> None:
    two_calls = [calls("add", {"amount": 3}, "a"), calls("add", {"amount": 5}, "b")]
    rollout = await played(Script([two_calls]))
    assert (rollout["reward"], rollout["finish_reason"], rollout["timings"]["tool_calls"]) == (8.0, "done", 2)


async def test_the_game_agent_counts_tool_calls_and_the_simple_agent_counts_turns() -> None:
    two_calls = [calls("add", {"amount": 0}, "a"), calls("add", {"amount": 0}, "b")]
    endings = {}
    for kind in (GameAgent, SimpleAgent):
        rollout = await played(Script([two_calls]), kind, max_steps=4)
        endings[kind.__name__] = (rollout["finish_reason"], rollout["truncated"], rollout["timings"]["model_calls"])
    assert endings == {"GameAgent": ("max_steps", True, 2), "SimpleAgent": ("max_steps", True, 4)}


async def test_a_model_that_never_stops_calling_tools_ends_the_episode_without_a_failure() -> None:
    script = Script([[calls("cheer", {})]])
    rollout = await played(script, SimpleAgent)
    assert (rollout["finish_reason"], rollout["timings"]["model_calls"]) == ("max_steps", DEFAULT_MAX_STEPS)


@pytest.mark.parametrize(
    ("kind", "status", "reason", "ending"),
    [
        (SimpleAgent, "incomplete", "max_output_tokens", "length"),
        (SimpleAgent, "completed", "content_filter", "content_filter"),
        (GameAgent, "incomplete", "content_filter", "content_filter"),
        (GameAgent, "completed", "max_output_tokens", "length"),
    ],
)
async def test_tool_calls_of_a_turn_that_was_cut_off_are_not_run(
    kind: Any, status: str, reason: str, ending: str
) -> None:
    script = Script([[calls("add", {"amount": 3})], [says("done")]], status=status, incomplete={"reason": reason})
    rollout = await played(script, kind)
    assert (rollout["finish_reason"], rollout["truncated"], rollout["reward"]) == (ending, True, 0.0)
    assert [item["type"] for item in rollout["response"]["output"]] == ["function_call"]


async def test_a_string_that_a_tool_returns_reaches_the_model_unquoted() -> None:
    rollout = await played(Script([[calls("cheer", {})], [says("thanks")]]))
    assert rollout["response"]["output"][1]["output"] == 'well "done"'
    assert rollout["finish_reason"] == "answered"


async def test_a_reward_that_is_not_finite_is_a_failure() -> None:
    with pytest.raises(Failure, match="reward nan") as raised:
        await played(Script([[says("hm")]]), row={**ROW, "nan": True})
    named = (raised.value.kind, raised.value.terminal, raised.value.problem.server)
    assert named == (FailureKind.MALFORMED_ANSWER, False, "environment")


@pytest.mark.parametrize("turn", [[says("bye")], [calls("explode", {})], [calls("add", {"amount": 9})]])
async def test_the_session_is_closed_exactly_once_however_the_episode_ends(turn: list[Json]) -> None:
    async with counting(Script([turn])) as stack:
        with contextlib.suppress(Failure):
            await stack.run(ROW)
        assert stack.servers["environment"].sessions == 0
        assert Counter.closed == ["closed"]


async def test_responses_plays_in_the_session_of_the_caller() -> None:
    async with counting(Script([[calls("add", {"amount": 2})], [says("done")]])) as stack:
        seeded = await stack.post("environment", "/seed_session", ROW)
        cookie = {"cookie": seeded.cookies[0].partition(";")[0]}
        played = orjson.loads((await stack.post("agent", "/v1/responses", {"input": "Play."}, cookie)).body)
        verdict = orjson.loads((await stack.post("environment", "/verify", {**ROW, "response": played}, cookie)).body)
        assert (verdict["reward"], verdict["level"]) == (2.0, 3)
        assert verdict["response"]["output"] == played["output"]
        assert stack.servers["environment"].sessions == 1
        await stack.post("environment", "/close", {}, cookie)
        assert stack.servers["environment"].sessions == 0


@pytest.mark.parametrize("given", [{"input": 1.5}, {"input": {"a": 1}}, {"input": [7]}, {"input": "a", "tools": "b"}])
async def test_parameters_of_responses_that_no_model_could_get_are_refused(given: Json) -> None:
    async with counting(Script([[says("done")]])) as stack:
        answer = await stack.post("agent", "/v1/responses", given)
    error = orjson.loads(answer.body)
    assert (answer.status, error["code"], error["server"]) == (422, "bad_task", "agent") and "expected" in error[
        "detail"
    ]


MALFORMED_TRACES: list[Any] = [
    *({"sampling": 1}, {"sampling": {"constrained": 1}}, {"sampling": {"constrained": [[]]}}),
    *({"segment": "x"}, {"segment": None}, {"segment": [1]}, {"break": {}}, {}, "x", 5),
]


async def test_a_malformed_token_trace_from_a_foreign_model_server_is_not_a_failure() -> None:
    script = Script([[{**says("bye"), "token_trace": trace}] for trace in MALFORMED_TRACES])
    async with counting(script) as stack:
        assert [(await stack.run(ROW))["reward"] for _ in MALFORMED_TRACES] == [0.0] * len(MALFORMED_TRACES)


@pytest.mark.parametrize("first", [False, True])
async def test_a_response_nested_too_deeply_to_serialize_is_a_failure_of_the_model_server(first: bool) -> None:
    kinds = set()
    for depth in range(240, 252):
        nested: Any = 1
        for _ in range(depth):
            nested = [nested]
        turns = [[{**calls("add", {}), "x": nested}], [says("bye")]] if first else [[{**says("bye"), "x": nested}]]
        async with counting(Script(turns)) as stack:
            try:
                kinds.add(str((await stack.run(ROW))["reward"]))
            except Failure as failure:
                kinds.add(f"{failure.kind} of {failure.problem.server}")
    assert kinds <= {"0.0", "1.0", "malformed_answer of model"} and len(kinds) == 2


class LimitSettings(AgentSettings):
    questions: int = 2


class Limited(Agent[LimitSettings]):
    """Takes its settings from the type argument."""

    async def play(self, episode: Episode) -> FinishReason:
        for _ in range(self.settings.questions):
            await episode.ask()
        return FinishReason.MAX_STEPS


async def test_self_settings_has_the_type_of_the_agents_type_argument() -> None:
    script = Script([[says("thinking")]])
    rollout = await played(script, Limited, questions=3)
    assert (rollout["finish_reason"], len(script.requests)) == ("max_steps", 3)


def test_an_agent_subclass_inherits_its_settings_or_overrides_them() -> None:
    class Kept(Limited):
        pass

    class Own(Limited):
        Settings = AgentSettings

    class KeptOwn(Own):
        pass

    assert [kind.Settings for kind in (Limited, Kept, Own, KeptOwn)] == [LimitSettings] * 2 + [AgentSettings] * 2


@pytest.mark.parametrize("kind", [GameAgent, SimpleAgent])
async def test_calls_of_a_turn_beyond_the_limit_are_answered_in_words_and_not_run(kind: Any) -> None:
    turn = [calls("add", {"amount": 1}, f"call-{number}") for number in range(5)]
    script = Script([turn, [says("enough")]])
    rollout = await played(script, kind, {**ROW, "level": 100}, max_tool_calls_per_turn=2)
    outputs = [item for item in rollout["response"]["output"] if item["type"] == "function_call_output"]
    assert [item["call_id"] for item in outputs] == [f"call-{number}" for number in range(5)]
    assert rollout["reward"] == 2.0
    assert all("at most 2 tool calls per turn" in item["output"] for item in outputs[2:])
    assert len(script.requests) == 2


async def test_the_limit_of_calls_starts_anew_with_every_turn() -> None:
    turns = [[calls("add", {}, f"{turn}-{number}") for number in range(2)] for turn in range(3)]
    script = Script([*turns, [says("done")]])
    assert (await played(script, SimpleAgent, {**ROW, "level": 100}, max_tool_calls_per_turn=2))["reward"] == 6.0


async def test_an_unknown_create_parameter_reaches_the_model_and_the_rollout() -> None:
    later: Json = {"field_of_a_later_api": {"x": [1, None]}, "safety_identifier": "s"}
    row = {**ROW, "responses_create_params": {**ROW["responses_create_params"], **later}}
    script = Script([[says("done")]])
    rollout = await played(script, SimpleAgent, row)
    assert {key: script.requests[0].get(key) for key in later} == later
    assert {key: rollout["responses_create_params"].get(key) for key in later} == later


async def foreign_run(stack: InProcessServers, row: Any) -> HttpResponse:
    return await stack.transport.send("POST", "http://agent:1/run", orjson.dumps(row), {}, 5.0)


@pytest.mark.parametrize(
    ("row", "turn", "kind", "terminal"),
    [
        (ROW, calls("explode", {}), "server_error", False),
        ({**ROW, "level": 13}, says("hm"), "bad_task", True),
        ({"level": 3}, says("hm"), "bad_task", True),
    ],
)
async def test_a_failed_rollout_is_a_row_without_a_reward(row: Json, turn: Json, kind: str, terminal: bool) -> None:
    row = {**row, "_ng_task_index": 4, "reward": 1.0}
    async with counting(Script([[turn]]), GameAgent, failures_as_rows=True) as stack:
        answer = await foreign_run(stack, row)
        assert stack.servers["environment"].sessions == 0
    found = orjson.loads(answer.body)
    assert (answer.status, found["_ng_failure_class"], found["_ng_failure_terminal"]) == (200, kind, terminal)
    assert found["_ng_failure"]["server"] and "reward" not in found and found["_ng_task_index"] == 4


async def test_other_answers_are_the_same_with_failures_as_rows() -> None:
    async with counting(Script([[says("hm")]]), GameAgent, failures_as_rows=True) as stack:
        assert (await foreign_run(stack, [1])).status == 400
        found = orjson.loads((await foreign_run(stack, ROW)).body)
    assert found["reward"] == 0.0 and "_ng_failure_class" not in found


async def test_without_the_setting_a_failed_rollout_keeps_its_status() -> None:
    async with counting(Script([[calls("explode", {})]])) as stack:
        assert (await foreign_run(stack, ROW)).status == 500
