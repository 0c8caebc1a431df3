"""What an author's methods return by mistake is named in the failure."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest

from rollyard import Environment, ToolResult, Turn, Verdict, Verification, serve, tool
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure, OperatorError
from rollyard.resources_servers.checks import verdict_json
from rollyard.testing import calls, play


class Slip(Environment[Any]):
    """Makes no mistake."""

    user_template = "Hello."

    async def verify(self, response: Verification) -> Any:
        return Verdict(reward=1.0)


class TurnSlip(Slip):
    """Turn-based."""

    async def reset(self) -> tuple[str, dict[str, Any]]:
        return "start", {}

    async def turn(self, text: str) -> Any:
        return Turn("over", terminated=True)


def returning(method: str, value: Any) -> type[Slip]:
    """An environment, turn-based if the method is, whose method returns the result of `value()`."""

    async def returns(self: Any, *arguments: Any) -> Any:
        return value()

    return type("Returning", (TurnSlip if method in ("reset", "turn") else Slip,), {method: returns})


ODD: Any = {1, 2}


def same(value: Any) -> Any:
    return value


NOT_RESETS: list[Any] = ["start", ("start",), (7, {}), ("start", []), None]
MISTAKES: list[tuple[str, Any, str]] = [
    *(("seed", partial(same, made), "seed returned") for made in ("look", {"role": "user"}, ["look"])),
    *(("verify", partial(same, made), f"verify returned {str(made)[:9]}") for made in (None, 1.0, {"reward": 1.0})),
    *(("reset", partial(same, made), "reset returned") for made in NOT_RESETS),
    ("turn", lambda: ["over", 1.0], "turn returned ['over'"),
    ("turn", lambda: Turn("over", terminated=1), "terminated=1 (int)"),  # type: ignore[arg-type]
    ("turn", lambda: Turn("over", truncated="yes"), "truncated='yes' (str)"),  # type: ignore[arg-type]
    ("turn", lambda: Turn("over", reward=True), "reward=True (bool)"),
    ("turn", lambda: Turn("over", reward="1.0"), "reward='1.0' (str)"),  # type: ignore[arg-type]
    ("turn", lambda: Turn("over", reward=float("nan")), "reward=nan (float)"),
    ("turn", lambda: Turn(7), "observation=7 (int)"),  # type: ignore[arg-type]
    ("turn", lambda: Turn("over", info=[1]), "info=[1] (list)"),  # type: ignore[arg-type]
    ("turn", lambda: Turn("over", info={"seen": ODD}), "info={'seen': {1, 2}}"),
    ("verify", lambda: Verdict(reward=1.0, reward_components={"length": float("nan")}), "reward_components.length"),
    ("verify", lambda: Verdict(reward=True), "reward True"),
    ("verify", lambda: Verdict(reward="1.0"), "reward '1.0'"),
    *(
        ("verify", lambda name=name: Verdict(reward=1.0, **{name: "mine"}), f"field {name},")
        for name in ("response", "finish_reason", "truncated", "timings", "token_trail", "agent_ref", "_ng_mine")
    ),
    *(
        ("verify", lambda value=value: Verdict(reward=0.0, brief=1, detail=value), "Verdict with detail=")
        for value in (ODD, np.float64(1), object(), np.bool_(True))
    ),
]


@pytest.mark.parametrize(("method", "value", "words"), MISTAKES)
def test_a_wrong_return_value_is_a_failure_that_names_it(method: str, value: Any, words: str) -> None:
    with pytest.raises(Failure, match=re.escape(words)):
        asyncio.run(play(returning(method, value), {}, ["Hi."]))


def test_a_template_may_name_a_field_in_any_language() -> None:
    class Named(Slip):
        user_template = "{größe}?"

    rollout = asyncio.run(play(Named, {"größe": "3"}, ["Hi."]))
    assert rollout.requests[0]["input"][0]["content"] == "3?"


def test_done_of_a_tool_result_must_be_a_truth_value() -> None:
    class Done(Slip):
        @tool
        async def end(self) -> ToolResult:
            return ToolResult("over", done=1)  # type: ignore[arg-type]

    with pytest.raises(Failure, match=r"done=1 \(int\)"):
        asyncio.run(play(Done, {}, [calls("end"), "Hi."]))


def test_an_integer_and_a_numpy_scalar_are_numbers() -> None:
    assert [Verdict(reward=value).reward for value in (1, np.int64(1), np.float32(1))] == [1.0, 1.0, 1.0]


def test_a_standard_field_that_is_none_is_not_on_the_row() -> None:
    undefined = returning("verify", lambda: Verdict(reward=1.0, success=None, reward_components=None))
    rollout = asyncio.run(play(undefined, {}, ["Hi."]))
    assert not {"success", "reward_components"} & rollout.row.keys()


@pytest.mark.parametrize("name", ["finish_reason", "agent_ref", "response"])
def test_a_class_of_verdicts_with_such_a_field_cannot_be_defined(name: str) -> None:
    with pytest.raises(TypeError, match=f"Mine .*field {name},"):
        type("Mine", (Verdict,), {"__annotations__": {name: str}, "__module__": __name__})


@pytest.mark.parametrize("name", ["step_rewards", "total_reward", "info"])
def test_only_a_turn_based_verdict_cannot_replace_the_record_of_the_steps(name: str) -> None:
    class Steps(TurnSlip):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0, **{name: "mine"})

    with pytest.raises(Failure, match=f"field {name},"):
        asyncio.run(play(Steps, {}, ["Hi."]))
    assert asyncio.run(play(Steps, {}, ["Hi."], agent=SimpleAgent))[name] == "mine"


@pytest.mark.parametrize(
    ("parsed", "stored"),
    [
        ('{"a": "\\ud800"}', {"a": "?"}),
        ("1" + "0" * 30, hex(10**30)),
        ("1" + "0" * 4000, hex(10**4000)),
        ("[" * 300 + "]" * 300, None),
        ('{"a": NaN}', {"a": None}),
    ],
)
def test_a_value_that_was_parsed_from_the_answer_never_fails_the_verdict(parsed: str, stored: Any) -> None:
    class Parsing(Slip):
        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=0.0, parsed=json.loads(response.text))

    rollout = asyncio.run(play(Parsing, {}, [parsed]))
    assert rollout.reward == 0.0
    assert rollout["parsed"] == stored if stored is not None else "nested deeper" in str(rollout["parsed"])


async def _ended() -> None:
    task = asyncio.create_task(asyncio.sleep(9))
    task.cancel()
    await task


@pytest.mark.parametrize("where", ["verify", "tool", "seed"])
@pytest.mark.parametrize(("ends", "words"), [("exit", r"SystemExit: 3|sys.exit\(3\)"), ("cancelled", "CancelledError")])
def test_code_that_exits_or_cancels_itself_is_a_failure_and_its_server_goes_on(
    where: str, ends: str, words: str
) -> None:
    class Ending(Slip):
        async def end(self) -> None:
            sys.exit(3) if ends == "exit" else await _ended()

        async def seed(self) -> Any:
            if where == "seed":
                await self.end()

        @tool
        async def call(self) -> None:
            if where == "tool":
                await self.end()

        async def verify(self, response: Verification) -> Verdict:
            if where == "verify":
                await self.end()
            return Verdict(reward=1.0)

    expected = "cancelled its own set-up" if (where, ends) == ("seed", "cancelled") else words
    with pytest.raises(Failure, match=expected):
        asyncio.run(play(Ending, {}, [calls("call"), "Hi."]))


@pytest.mark.parametrize("name", ["verify", "seed", "reset", "turn", "close"])
def test_a_method_with_a_yield_stops_the_start(name: str) -> None:
    async def generator(self: Any, *arguments: Any) -> Any:
        yield None

    with pytest.raises(OperatorError, match=rf"Yielding\.{name} contains `yield`"):
        serve(type("Yielding", (Slip,), {name: generator}))


@pytest.mark.parametrize("message", ['"\\ud800"', "1" + "0" * 30, "[" * 300 + "]" * 300])
def test_what_a_turn_parsed_from_the_message_never_fails_the_rollout(message: str) -> None:
    class Parsing(TurnSlip):
        async def turn(self, text: str) -> Turn:
            found = json.loads(text)
            return Turn(found if isinstance(found, str) else "over", terminated=True, info={"found": found})

    rollout = asyncio.run(play(Parsing, {}, [message]))
    assert (rollout.reward, rollout.finish_reason) == (1.0, "done")


def test_an_exception_that_quotes_the_model_is_a_bounded_failure_that_can_be_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)  # xdist cannot send a report with the logged surrogate

    class Quoting(Slip):
        async def verify(self, response: Verification) -> Verdict:
            raise ValueError("\ud800" + "x" * 1_000_000)

    with pytest.raises(Failure, match=r"ValueError: \?xxx") as caught:
        asyncio.run(play(Quoting, {}, ["Hi."]))
    assert len(caught.value.problem.detail) < 11_000


@pytest.mark.parametrize(
    ("summed", "written"),
    [
        (sum([0.1] * 7), 0.7),
        (sum([-0.1] * 100), -10.0),
        (10.9 - sum([0.1] * 102), 0.7),
        (0.3 - 0.1 - 0.1 - 0.1, 0.0),
        (0.1 + 0.2, 0.3),
        (1 / 3, 1 / 3),
        (2 / 3, 2 / 3),
        (1e-12, 1e-12),
        (1e60, 1e60),
        (0.123456789123, 0.123456789123),
        (3.0, 3.0),
    ],
)
def test_a_sum_of_decimal_fractions_is_written_as_such_and_any_other_number_as_it_is(
    summed: float, written: float
) -> None:
    found = verdict_json(Verdict(reward=summed, reward_components={"steps": summed}))
    assert (found["reward"], found["reward_components"]) == (written, {"steps": written})
