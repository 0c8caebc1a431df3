"""Invalid tool calls of the model: it gets an error message, and the first attempt is measured."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import orjson

from tests.faults.chaos.endpoint import Request, completion, http, scripted, tool_call
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import FaultContext
from tests.faults.chaos.faults.engines import engine
from tests.faults.chaos.faults.processes import no_sessions
from tests.faults.chaos.invariants import hold, injected, no_crash, read


def odd_call(name: str, arguments: Any) -> dict[str, Any]:
    return completion(tool_call(name, arguments, 0))


WHOLE = orjson.dumps(odd_call("step", '{"actions": ["MOVE"]}'))
SURROGATE = WHOLE.replace(b"MOVE", rb"\ud83d")
SURROGATE_NAME = WHOLE.replace(b'"name":"step"', rb'"name":"st\udc00ep"')
SURROGATE_TEXT = WHOLE.replace(b'"content":null', rb'"content":"\ud83d"')
SURROGATE_ID = WHOLE.replace(b'"id":"call_0"', rb'"id":"call_\udfff"')
TOOL_NAMES = [
    *("verify", "close", "reset", "seed_session", "aggregate_metrics", "run", "v1/responses", "../verify"),
    *("step/../close", "step?x=1", "step#", "st ep", "openapi.json", "_close", "turn", "agent/close", "agent"),
    *("x" * 5000, "step\r\nx: y", "\x1b[31mstep", "schritt\u00e9"),
]
MISTAKES: list[tuple[str, Any]] = [
    ("an empty tool name", odd_call("", {"actions": []})),
    ("a lone surrogate in the arguments", SURROGATE),
    ("a lone surrogate in the tool's name", SURROGATE_NAME),
    ("a lone surrogate in its text", SURROGATE_TEXT),
    ("a lone surrogate in the call's id", SURROGATE_ID),
    ("an escaped surrogate in the arguments", odd_call("step", r'{"actions": ["\ud83d"]}')),
    ("arguments that are not JSON", odd_call("step", '{"actions": ["Up"')),
    ("arguments that are a list", odd_call("step", [1])),
    ("arguments that are null", odd_call("step", "null")),
    ("empty arguments", odd_call("step", "")),
    ("NaN as an argument", odd_call("step", '{"actions": NaN}')),
    ("arguments nested 2,000 deep", odd_call("step", '{"actions": ' + "[" * 2000 + "]" * 2000 + "}")),
    ('step({"response": {}})', odd_call("step", {"response": {}})),
    ("step with a response that is not JSON", odd_call("step", '{"response": ')),
    ("step with a complete response", odd_call("step", {"response": {"output": []}, "actions": []})),
    *((f"the tool name {name[:40]!r}", odd_call(name, {})) for name in TOOL_NAMES),
]


class Mistaken:
    """The script, except that the second call in every episode is invalid."""

    def __init__(self, mistake: bytes | dict[str, Any]) -> None:
        self._mistake = http(mistake)
        self._script = [http(scripted(turn)) for turn in range(6)]
        self._models = http({"object": "list", "data": []})
        self.invalid_calls = 0

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        if not request.head.startswith(b"POST"):
            transport.write(self._models)
        elif request.turn == 1:
            self.invalid_calls += 1
            transport.write(self._mistake)
        else:
            transport.write(self._script[max(0, min(request.turn - (request.turn > 1), 5))])


async def mistaken(mistake: Any, context: FaultContext, rng: random.Random) -> None:
    """Every episode contains the invalid call, gets an error message and is measured at its first attempt."""
    async with context.lock("engine"):
        run, endpoint = await engine(context)
        behaviour = Mistaken(mistake)
        endpoint.behaviour = behaviour
        output = context.output()
        command = await context.begin(run, output, "+limit=10", "+num_repeats=1")
        status = await command.exit_status()
        injected(behaviour.invalid_calls >= 10, f"{behaviour.invalid_calls} invalid calls were made")
        no_crash(command.output)
        failed = read(output.with_name("rollouts_failures.jsonl"))
        kinds = [f"{row['failure_kind']} {row['detail'][:200]}" for row in failed]
        hold(not failed, f"{len(failed)} failed attempts: {kinds[:1]}")
        hold(status == 0, f"ended with {status}: {command.output[-400:]}")
        rows = read(output)
        hold(len(rows) == 10, f"{len(rows)} of 10 measured")
        for row in rows:
            outputs = [item for item in row["response"]["output"] if item["type"] == "function_call_output"]
            hold(len(outputs) == 6, f"{len(outputs)} tool results in an episode, and {row['finish_reason']}")
            hold(
                row["reward"] == 1.0 or "task_id" in str(outputs[1]["output"]),
                f"reward {row['reward']}: {row['wrong']}",
            )
        await no_sessions(run)


FAULTS = [
    Fault(
        f"invalid model output: {mistake_name}",
        3,
        "error message to the model; the rollout is measured",
        partial(mistaken, mistake),
        slow=number > 14,
    )
    for number, (mistake_name, mistake) in enumerate(MISTAKES)
]
