"""What an author's methods return by mistake is named in the failure."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from typing import Any

import numpy as np
import pytest

from rollyard import Environment, Turn, Verdict, Verification, serve, tool
from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import Failure, OperatorError
from rollyard.records.types import Json
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


ODD: Any = {1, 2}


def returning(method: str, value: Any) -> type[Slip]:
    """An environment, turn-based if the method is, whose method returns the result of `value()`."""

    async def returns(self: Any, *arguments: Any) -> Any:
        return value()

    return type("Returning", (TurnSlip if method in ("reset", "turn") else Slip,), {method: returns})


def always(value: Any) -> Any:
    return lambda: value


NO_VERDICTS: list[Any] = [None, 1.0, {"reward": 1.0}]
NOT_MESSAGES: list[Any] = ["look", {"role": "user"}, ["look"]]
NOT_RESETS: list[Any] = ["start", ("start",), (7, {}), ("start", []), None]
WRONG_TURNS: list[tuple[Json, str]] = [
    ({"terminated": 1}, "terminated=1 (int)"),
    ({"truncated": "yes"}, "truncated='yes' (str)"),
    ({"reward": True}, "reward=True (bool)"),
    ({"reward": "1.0"}, "reward='1.0' (str)"),
    ({"reward": float("nan")}, "reward=nan (float)"),
    ({"observation": 7}, "observation=7 (int)"),
    ({"info": [1]}, "info=[1] (list)"),
    ({"info": {"seen": ODD}}, "info={'seen': {1, 2}}"),
]
MISTAKES: list[tuple[str, Any, str]] = [
    *(("seed", always(made), "seed returned") for made in NOT_MESSAGES),
    *(("verify", always(made), f"verify returned {str(made)[:9]}") for made in NO_VERDICTS),
    *(("reset", always(made), "reset returned") for made in NOT_RESETS),
    ("turn", always(["over", 1.0]), "turn returned ['over'"),
    *(("turn", always(Turn(**{"observation": "over", **wrong})), words) for wrong, words in WRONG_TURNS),
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


PARSED = [("{}", {}), ('{"a": "\\ud800"}', {"a": "?"}), ('{"a": NaN}', {"a": None}), ("[" * 300 + "]" * 300, None)]


@pytest.mark.parametrize(("parsed", "stored"), [*PARSED, *(("1" + "0" * n, hex(10**n)) for n in (30, 4000))])
def test_a_value_that_was_parsed_from_the_answer_never_fails_the_verdict_or_a_turn(parsed: str, stored: Any) -> None:
    class Parsing(TurnSlip):
        async def turn(self, text: str) -> Turn:
            return Turn("over", terminated=True, info={"found": json.loads(text)})

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=0.0, parsed=json.loads(response.text))

    rollout = asyncio.run(play(Parsing, {}, [parsed]))
    assert (rollout.reward, rollout.finish_reason) == (0.0, "done")
    assert rollout["parsed"] == stored if stored is not None else "nested deeper" in str(rollout["parsed"])


async def _ended() -> None:
    task = asyncio.create_task(asyncio.sleep(9))
    task.cancel()
    await task


@pytest.mark.parametrize("where", ["verify", "look", "seed"])
@pytest.mark.parametrize(("ends", "words"), [("exit", r"SystemExit: 3|sys.exit\(3\)"), ("cancelled", "CancelledError")])
def test_code_that_exits_or_cancels_itself_is_a_failure_and_its_server_goes_on(
    where: str, ends: str, words: str
) -> None:
    async def end(self: Any, response: Any = None) -> Any:
        sys.exit(3) if ends == "exit" else await _ended()

    ending = type("Ending", (Slip,), {where: tool(end) if where == "look" else end})
    expected = "cancelled its own set-up" if (where, ends) == ("seed", "cancelled") else words
    with pytest.raises(Failure, match=expected):
        asyncio.run(play(ending, {}, [calls("look"), "Hi."]))


@pytest.mark.parametrize("name", ["verify", "seed", "reset", "turn", "close"])
def test_a_method_with_a_yield_stops_the_start(name: str) -> None:
    async def generator(self: Any, *arguments: Any) -> Any:
        yield None

    with pytest.raises(OperatorError, match=rf"Yielding\.{name} contains `yield`"):
        serve(type("Yielding", (Slip,), {name: generator}))


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


SUMS: list[tuple[Any, float]] = [
    *((sum([0.1] * 7), 0.7), (sum([-0.1] * 100), -10.0), (10.9 - sum([0.1] * 102), 0.7), (0.3 - 0.1 - 0.1 - 0.1, 0.0)),
    *((value, float(value)) for value in (1 / 3, 2 / 3, 1e-12, 1e60, 0.123456789123, 3, np.int64(1), np.float32(1))),
]


@pytest.mark.parametrize(("summed", "written"), SUMS)
def test_a_sum_of_decimal_fractions_is_written_as_such_and_any_other_number_as_it_is(
    summed: Any, written: float
) -> None:
    found = verdict_json(Verdict(reward=summed, reward_components={"steps": summed}))
    assert (found["reward"], found["reward_components"]) == (written, {"steps": written})
