"""The agent for turn-based environments, with environments of Rollyard and with servers in the style of NeMo Gym."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response
from pydantic import TypeAdapter

from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import TurnRolloutRow
from rollyard.records.types import Json
from rollyard.resources_servers.base import BadTask, Environment, EnvironmentSettings, Turn, Verdict, Verification
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import failure_of
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says
from tests.support.typed_keys import untyped_keys

ROW: Json = {"responses_create_params": {"input": "Guess the number."}, "secret": 7}


class Guess(Environment[EnvironmentSettings]):
    """Number guessing with three guesses; it answers higher or lower."""

    closed: list[int] = []  # noqa: RUF012 - read by tests
    seen: list[str] = []  # noqa: RUF012 - read by tests

    def __init__(self, task: Any, settings: EnvironmentSettings) -> None:
        super().__init__(task, settings)
        self.guesses = 0

    async def reset(self) -> tuple[str, Json]:
        return "A number from 1 to 9.", {"range": 9}

    async def turn(self, text: str) -> Turn:
        self.guesses += 1
        self.seen.append(text)
        if text == "crash":
            raise RuntimeError("the environment is broken")
        if not text.isdigit():
            raise BadTask(f"{text!r} is not a number")
        if text == "666":
            return Turn("odd", float("nan"), False, False, {})
        if int(text) == self.task["secret"]:
            return Turn("Right.", 1.0, True, False, {"guesses": self.guesses})
        return Turn("higher" if int(text) < self.task["secret"] else "lower", -0.1, False, self.guesses >= 3, {})

    async def close(self) -> None:
        self.closed.append(self.guesses)


class Scored(Guess):
    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=float(self.guesses), success=response.text == str(self.task["secret"]))


def guessing(script: Script, kind: type[Guess] = Guess, **settings: Any) -> Any:
    Guess.closed.clear()
    Guess.seen.clear()
    return episode_servers(kind, script, TurnAgent, **settings)


async def played(script: Script, kind: type[Guess] = Guess, row: Json = ROW, **settings: Any) -> Json:
    async with guessing(script, kind, **settings) as stack:
        rollout: Json = await stack.run(row)
        assert closed(stack)
    return rollout


def messages(*texts: str) -> Script:
    return Script([[says(text)] for text in texts])


def cut_off(text: str, reason: str) -> Script:
    return Script([[says(text)]], status="incomplete", incomplete={"reason": reason})


def closed(stack: InProcessServers) -> bool:
    return stack.servers["environment"].sessions == 0


async def test_the_model_sees_the_first_observation_and_then_one_after_each_of_its_messages() -> None:
    script = messages("5", "8", "7")
    rollout = await played(script)
    texts = [item["content"] for item in script.requests[2]["input"] if item["role"] == "user"]
    assert texts == ["Guess the number.", "A number from 1 to 9.", "higher", "lower"]
    assert rollout["responses_create_params"]["input"][1]["content"] == "A number from 1 to 9."
    assert Guess.closed == [3]


async def test_an_environment_without_verify_is_scored_by_the_sum_of_its_step_rewards() -> None:
    rollout = await played(messages("5", "8", "7"))
    assert rollout["step_rewards"] == [-0.1, -0.1, 1.0]
    assert rollout["reward"] == rollout["total_reward"] == pytest.approx(0.8)
    assert (rollout["terminated"], rollout["info"]) == (True, {"guesses": 3})
    assert (rollout["final_observation"], rollout["reset_info"]) == ("Right.", {"range": 9})
    TypeAdapter(TurnRolloutRow).validate_python(rollout, strict=True)
    assert set(untyped_keys(rollout, TurnRolloutRow)) <= ROW.keys()


async def test_an_environments_own_verdict_decides_after_the_last_step() -> None:
    rollout = await played(messages("5", "7"), Scored)
    assert (rollout["reward"], rollout["success"], rollout["total_reward"]) == (2.0, True, 0.9)
    assert Scored.closed == [2]


async def test_sum_steps_skips_the_verdict() -> None:
    rollout = await played(messages("7"), Scored, sum_steps=True)
    assert (rollout["reward"], rollout.get("success")) == (1.0, None)


async def test_the_verdict_sees_the_models_last_message_and_not_the_last_observation() -> None:
    async with guessing(messages("1"), Scored, max_steps=1) as stack:
        rollout = await stack.run({**ROW, "secret": 1})
        missed = await stack.run({**ROW, "secret": 2})
    assert (rollout["success"], missed["success"]) == (True, False)
    assert missed["response"]["output"][-1]["content"] == "higher"


@pytest.mark.parametrize(
    ("script", "settings", "reason", "truncated"),
    [
        (messages("7"), {}, "done", False),
        (messages("1"), {}, "truncated", True),
        (messages("1"), {"max_steps": 2}, "max_steps", True),
        (cut_off("1", "max_output_tokens"), {}, "length", True),
        (cut_off("7", "max_output_tokens"), {}, "done", False),
        (cut_off("7", "content_filter"), {}, "content_filter", True),
    ],
)
async def test_each_ending_has_its_own_finish_reason(
    script: Script, settings: Json, reason: str, truncated: bool
) -> None:
    rollout = await played(script, **settings)
    assert (rollout["finish_reason"], rollout["truncated"]) == (reason, truncated)
    assert rollout["timings"]["model_calls"] == len(script.requests)


def changed(script: Script, change: Callable[[Json], Json]) -> Any:
    """The script's model server, which answers with `change(answer)`."""

    def model(context: Context) -> Any:
        server: Any = script.model(context)
        respond = server.responses

        async def responses(request: Json, call: Any) -> Json:
            return change(await respond(request, call))

        server.responses = responses
        return server

    Guess.seen.clear()
    return episode_servers(Guess, model, TurnAgent)


async def test_a_full_context_ends_the_episode_and_its_steps_still_count() -> None:
    script = messages("5")

    def overflow(answer: Json) -> Json:
        if len(script.requests) > 1:
            raise Failure(FailureKind.CONTEXT_OVERFLOW, "too long")
        return answer

    async with changed(script, overflow) as stack:
        rollout = await stack.run(ROW)
        assert closed(stack)
    assert (rollout["finish_reason"], rollout["step_rewards"]) == ("context_overflow", [-0.1])


async def test_with_an_action_tag_the_environment_gets_only_the_last_action() -> None:
    text = "not <action>1</action>, rather <ACTION> 7\n</ACTION>. Done"
    rollout = await played(messages(text), action_tag="action")
    assert (Guess.seen, rollout["reward"]) == (["7"], 1.0)
    assert rollout["response"]["output"][0]["content"][0]["text"] == text


async def test_a_message_without_the_tag_costs_a_turn_and_returns_an_error_message() -> None:
    script = messages("7", "<action>7", "<action>7</action>")
    rollout = await played(script, action_tag="action", max_steps=2)
    assert (rollout["finish_reason"], rollout["step_rewards"], rollout["reward"]) == ("max_steps", [0.0, 0.0], 0.0)
    assert "has no <action>...</action>" in script.requests[1]["input"][-1]["content"]
    assert (Guess.seen, len(script.requests)) == ([], 2)


async def test_an_unreadable_tool_call_ends_the_episode_with_that_finish_reason() -> None:
    async with changed(messages("hmm"), lambda answer: {**answer, "finish_reason": "unreadable_call"}) as stack:
        rollout = await stack.run(ROW)
    assert (rollout["finish_reason"], rollout["reward"], Guess.seen) == ("unreadable_call", 0.0, [])


async def test_a_mistake_of_the_model_becomes_an_observation_and_not_a_failure() -> None:
    script = messages("seven", "7")
    rollout = await played(script)
    assert script.requests[1]["input"][-1]["content"] == "'seven' is not a number"
    assert rollout["step_rewards"] == [0.0, 1.0]


@pytest.mark.parametrize(("text", "kind"), [("crash", FailureKind.SERVER_ERROR), ("666", FailureKind.MALFORMED_ANSWER)])
async def test_a_broken_environment_is_a_failure_of_its_server_and_its_session_is_closed(
    text: str, kind: FailureKind
) -> None:
    async with guessing(messages(text)) as stack:
        failure = await failure_of(stack.run(ROW))
        assert closed(stack)
    assert (failure.kind, failure.problem.server) == (kind, "environment")


async def test_an_environment_that_is_not_turn_based_rejects_the_row() -> None:
    class Other(Environment[EnvironmentSettings]):
        """Has tools only."""

    async with episode_servers(Other, messages("x"), TurnAgent) as stack:
        with pytest.raises(Failure, match="not turn-based"):
            await stack.run(ROW)
        assert closed(stack)


async def test_a_tool_call_in_a_turn_based_environment_gets_an_error_message() -> None:
    script = Script([[says("5"), calls("guess", {"number": 5}, "c9")], [says("7")]])
    rollout = await played(script)
    tool_outputs = [item for item in script.requests[1]["input"] if item.get("type") == "function_call_output"]
    assert [(item["call_id"], "no tool calls" in item["output"]) for item in tool_outputs] == [("c9", True)]
    assert rollout["reward"] == 0.9


class Gym(Server):
    """Like a Gymnasium-style server of NeMo Gym: cookies, no /verify, no /close, and the row in each step."""

    def __init__(self, context: Context, steps: list[Any]) -> None:
        super().__init__(ServerSettings(), context)
        self.received: list[tuple[str, Any, Json]] = []
        app = FastAPI()

        @app.post("/reset")
        async def reset(request: Request, response: Response) -> Json:
            self.received.append(("/reset", request.cookies.get("session"), await request.json()))
            response.set_cookie("session", "opaque")
            return {"observation": None, "info": {}}

        @app.post("/step")
        async def step(request: Request, response: Response) -> Any:
            self.received.append(("/step", request.cookies.get("session"), await request.json()))
            response.set_cookie("session", f"opaque{len(self.received)}")
            return steps.pop(0)

        self.app.mount("/", app)


def step_result(observation: Any, reward: Any, *, end: bool = False, **info: Any) -> Json:
    return {"observation": observation, "reward": reward, "terminated": end, "truncated": False, "info": info}


def gym(script: Script, steps: list[Any], **settings: Any) -> Any:
    return episode_servers(lambda context: Gym(context, steps), script, TurnAgent, **settings)


async def test_a_gymnasium_style_server_is_played_with_its_cookies_and_scored_by_its_steps() -> None:
    steps = [step_result("What next?", 0.5), step_result(None, 0.25, end=True, score=3)]
    async with gym(messages("one", "two"), steps) as stack:
        rollout = await stack.run({**ROW, "follow_ups": ["x"]})
        received = stack.servers["environment"].received
    cookies = [(path, cookie) for path, cookie, _ in received]
    assert cookies == [("/reset", None), ("/step", "opaque"), ("/step", "opaque2")]
    assert all(body["follow_ups"] == ["x"] and "responses_create_params" in body for _, _, body in received)
    assert received[2][2]["response"]["output"][0]["content"][0]["text"] == "two"
    assert (rollout["reward"], rollout["step_rewards"], rollout["finish_reason"]) == (0.75, [0.5, 0.25], "done")
    assert (rollout["terminated"], rollout["info"]) == (True, {"score": 3})


async def test_tool_outputs_of_a_gymnasium_style_server_answer_the_models_calls() -> None:
    script = Script([[calls("add", {"a": 1}, "c1")], [says("2")]])
    outputs = [{"call_id": "c1", "output": "2"}]
    async with gym(script, [step_result(None, 0.0, tool_outputs=outputs), step_result(None, 1.0, end=True)]) as stack:
        rollout = await stack.run(ROW)
    kinds = [item.get("type") for item in rollout["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message"]
    assert script.requests[1]["input"][-1] == {"type": "function_call_output", "call_id": "c1", "output": "2"}


MALFORMED_STEPS: list[Any] = [
    *({"reward": None}, {"reward": "1"}, {"reward": True}, {"reward": 1e300}, {}, []),
    {"reward": 1.0, "observation": 5},
    *({"reward": 1.0, "info": []}, {"reward": 1.0, "terminated": 1}, {"reward": 1.0, "truncated": "true"}),
]


async def test_a_malformed_step_is_a_failure_and_never_a_reward() -> None:
    async with gym(messages("x"), [*MALFORMED_STEPS]) as stack:
        for step in MALFORMED_STEPS:
            failure = await failure_of(stack.run(ROW))
            named = (failure.kind, failure.problem.server)
            assert named == (FailureKind.MALFORMED_ANSWER, "environment"), step


async def test_token_ids_are_recorded_but_not_sent_to_the_environment() -> None:
    item = {**says("one"), "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    async with gym(Script([[item]]), [step_result(None, 1.0, end=True)]) as stack:
        rollout = await stack.run(ROW)
        sent = orjson.dumps(stack.servers["environment"].received[1][2])
    assert b"token_ids" not in sent
    assert rollout["response"]["output"][0]["generation_token_ids"] == [2]


async def test_calls_of_a_turn_beyond_the_limit_do_not_reach_a_turn_based_environment() -> None:
    script = Script([[calls("add", {}, f"c{number}") for number in range(3)], [says("2")]])
    steps = [step_result("Next.", 0.0), step_result(None, 1.0, end=True)]
    async with gym(script, steps, max_tool_calls_per_turn=1) as stack:
        await stack.run(ROW)
        received = stack.servers["environment"].received
    assert [item["call_id"] for item in received[1][2]["response"]["output"]] == ["c0"]
    answers = [item for item in script.requests[1]["input"] if item.get("type") == "function_call_output"]
    told = [(item["call_id"], "at most 1 tool call per turn" in item["output"]) for item in answers]
    assert told == [("c0", False), ("c1", True), ("c2", True)]
