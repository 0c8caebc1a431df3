"""One or two bad endpoints of ten: everything is measured, and they get few calls."""

from __future__ import annotations

import random
import socket
from functools import partial

from tests.faults.chaos.endpoint import Endpoint, Script, http, scripted
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import TASKS, FaultContext, stack
from tests.faults.chaos.faults.engines import Spoil
from tests.faults.chaos.faults.hostile_responses import raw, reset, silent, slow
from tests.faults.chaos.invariants import hold, injected, no_crash, whole

MOST_CALLS = 0.05
"""Share of all calls that one bad endpoint of ten may get."""
REPEATS = 6

BAD_WAYS: list[tuple[str, Spoil, str]] = [
    ("truncated JSON", raw(http(b'{"choices": [{"mess')), "takes more than its share; rollouts abandoned"),
    (
        "HTML with status 200",
        raw(http(b"<html>502 Bad Gateway</html>", kind="text/html")),
        "takes more than its share; rollouts abandoned",
    ),
    ("JSON of another shape", raw(http([])), "takes more than its share; rollouts abandoned"),
    ("empty responses", raw(http({"choices": [{"message": {}}]})), "rewards for its empty responses"),
    ("status 500", raw(http({"error": {"message": "no"}}, 500)), "held"),
    ("status 503", raw(http(b"", 503)), "held"),
    ("status 429", raw(http({"error": {"message": "slow down"}}, 429, "retry-after: 1\r\n")), "held"),
    ("status 404", raw(http({"error": {"message": "no such model"}}, 404)), "most rollouts abandoned"),
    ("status 401", raw(http({"error": {"message": "bad key"}}, 401)), "most rollouts abandoned"),
    ("a redirect", raw(http(b"", 302, "location: http://127.0.0.1:1/\r\n")), "most rollouts abandoned"),
    ("bytes that are not HTTP", raw(b"\x15\x03\x01\x00\x02\x02P", close=True), "held"),
    ("the connection reset", reset, "held"),
    ("truncated bodies", raw(http(scripted(0))[:-30], close=True), "held"),
    ("silence", silent, "held"),
    ("slow responses", slow, "held"),
]


async def of_ten(spoil: Spoil | str, bad: int, context: FaultContext, chance: random.Random) -> None:
    """Everything is measured, and each bad endpoint gets less than 5 % of the calls."""
    endpoints = [Endpoint(Script(latency_s=0.1)) for _ in range(10)]
    closed: list[socket.socket] = []
    try:
        for one in endpoints:
            await one.listen()
        chosen = chance.sample(endpoints, bad)
        for one in chosen:
            if callable(spoil):
                one.behaviour = spoil
            else:
                await one.close()
                if spoil == "deaf":
                    closed.append(deaf(int(one.url.rpartition(":")[2])))
        limits = {"request_timeout_s": 3.0, "retry_pause_s": 0.05}
        async with context.run(stack([one.url for one in endpoints], model=limits), "+colocate=true") as run:
            output = context.output()
            wanted = ["+num_samples_in_parallel=40", f"+num_repeats={REPEATS}"]
            command = await context.begin(run, output, *wanted)
            status = await command.ends()
            no_crash(command.said)
            whole(output, TASKS, REPEATS)
            hold(status == 0, f"ended with {status}")
        calls = sum(one.calls for one in endpoints)
        for one in chosen:
            if callable(spoil):
                injected(one.calls, "the bad endpoint was never called")
            hold(one.calls < MOST_CALLS * calls, f"{one.calls} of {calls} calls went to a bad endpoint")
    finally:
        for sock in closed:
            sock.close()
        for one in endpoints:
            await one.close()


def deaf(port: int) -> socket.socket:
    """A listening socket with a full accept queue: further connections get no reply."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(0)
    for _ in range(3):
        other = socket.socket()
        other.setblocking(False)
        other.connect_ex(("127.0.0.1", port))
        _HELD.append(other)
    return listening


_HELD: list[socket.socket] = []


WAYS: list[tuple[str, Spoil | str, str]] = [
    *BAD_WAYS,
    ("a refused connection", "refused", "held"),
    ("an address whose accept queue is full", "deaf", "held"),
]

FAULTS = [
    Fault(
        f"{'one endpoint' if bad == 1 else 'two endpoints'} of ten: {words}",
        3,
        before,
        "all measured, under 5 % of the calls at each",
        partial(of_ten, spoil, bad),
        slow=bad > 1
        or words not in ("truncated JSON", "status 404", "silence", "an address whose accept queue is full"),
    )
    for bad in (1, 2)
    for number, (words, spoil, before) in enumerate(WAYS)
]
