"""A broken engine: complete responses without content. They are failed attempts, never answers with a reward."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.chaos.endpoint import Behaviour, Endpoint, Request, Script, completion, http, later
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import MODEL, QUICK, REPEATS, TASKS, FaultContext
from tests.faults.chaos.invariants import Broken, hold, injected, no_crash, read, whole
from tests.faults.chaos.workspace import Run

SHARE = 0.15
"""Share of failing calls: three attempts of a call then fail once in 300 calls, three attempts of a rollout never."""
GROWTH_MB = 512
"""Memory growth that hostile bytes may cause in a server's process."""
FEW, MANY = 4, 10**9
"""Numbers of faulty calls; expensive ones occur one at a time."""


def responds(body: Any, **arguments: Any) -> Behaviour:
    data = http(body, **arguments)
    return lambda request, transport: later(transport, QUICK, data)


def empty(finish_reason: Any, **message: Any) -> dict[str, Any]:
    response = completion({"content": None, **message})
    response["choices"][0]["finish_reason"] = finish_reason
    return response


SCORED, FAILED = "`answered`, with a reward", "a failed attempt"
EMPTY: list[tuple[str, Any]] = [
    ("an empty message", {"choices": [{"message": {}}]}),
    ("finish_reason null and no text", empty(None)),
    ("finish_reason null and empty text", empty(None, content="")),
    ("finish_reason engine_error", empty("engine_error")),
    ("an unknown finish_reason", empty("melted")),
    ("finish_reason abort", empty("abort", content="")),
    ("finish_reason tool_calls without a call", empty("tool_calls", tool_calls=[])),
    ("a finish_reason that is a number", empty(7)),
    ("no choices", {**completion({}), "choices": []}),
    ("a null message", {"choices": [{"message": None, "finish_reason": "stop"}]}),
    ("choices that are a string", {"choices": "none"}),
    ("an error with status 200", {"error": {"message": "engine died", "code": 500}}),
]


class Sometimes:
    """The script, with faults in a seeded random share of the calls."""

    def __init__(self, behaviour: Behaviour, share: float, rng: random.Random, most: int = 10**9) -> None:
        """At most `most` calls are faulty; if that is few, one at a time."""
        self._behaviour = behaviour
        self._most = most
        self._current: asyncio.Transport | None = None
        self._share = share
        self._rng = rng
        self._script = Script(latency_s=QUICK)
        self.invalid = 0

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        if request.head.startswith(b"POST") and self._rng.random() < self._share and self._may():
            self.invalid += 1
            self._current = transport
            self._behaviour(request, transport)
        else:
            self._script(request, transport)

    def _may(self) -> bool:
        if self._most > 1000:
            return True
        return self.invalid < self._most and (self._current is None or self._current.is_closing())


async def sometimes(behaviour: Behaviour, most: int, context: FaultContext, rng: random.Random) -> None:
    """Some calls are faulty: every rollout is measured and equals that of an uninterrupted run."""
    async with context.lock("engine"):
        run, endpoint = await engine(context)
        faulty = Sometimes(behaviour, SHARE, rng, most)
        endpoint.behaviour = faulty
        output = context.output()
        before = memory_mb(await run.pid(MODEL), afresh=True)
        command = await context.begin(run, output, "+max_attempts=5", "+num_samples_in_parallel=16")
        status = await command.exit_status()
        injected(faulty.invalid >= min(3, most), f"{faulty.invalid} calls were faulty")
        no_crash(command.output)
        whole(output, TASKS, REPEATS)
        hold(status == 0, f"ended with {status}")
        growth = memory_mb(await run.pid(MODEL)) - before
        hold(growth < GROWTH_MB, f"the model server grew by {growth:.0f} MB")


async def always(behaviour: Behaviour, context: FaultContext, rng: random.Random) -> None:
    """Every response is faulty: nothing is measured, and the command reports it."""
    async with context.lock("engine"):
        run, endpoint = await engine(context)
        faulty = Sometimes(behaviour, 1.0, rng)
        endpoint.behaviour = faulty
        output = context.output()
        command = await context.begin(run, output, "+max_attempts=1", "+limit=10", "+num_repeats=1")
        status = await command.exit_status()
        injected(faulty.invalid, "no call was faulty")
        rewards = [row["reward"] for row in read(output)]
        hold(not rewards, f"{len(rewards)} of 10 have a reward: {rewards[:5]}")
        hold(status == 1, f"ended with {status}")
        no_crash(command.output)


async def engine(context: FaultContext) -> tuple[Run, Endpoint]:
    """A run with one endpoint, whose behaviour each fault sets."""
    limits = {"request_timeout_s": 4.0, "max_attempts": 3, "retry_pause_s": 0.05}
    return await context.shared("engine", lambda: context.playing(model=limits))


def memory_mb(pid: int | None, *, afresh: bool = False) -> float:
    """Peak memory of the process since the last call with `afresh`."""
    if afresh:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise Broken("the model server has exited")


FAULTS = [
    *(
        Fault(
            f"an engine that returns {kind}, occasionally",
            3,
            "a failed attempt, retried",
            partial(sometimes, responds(body), MANY),
            slow=number > 3,
        )
        for number, (kind, body) in enumerate(EMPTY)
    ),
    *(
        Fault(
            f"an engine that only returns {kind}",
            3,
            "no reward, exit 1",
            partial(always, responds(body)),
            slow=number > 3,
        )
        for number, (kind, body) in enumerate(EMPTY)
    ),
]
