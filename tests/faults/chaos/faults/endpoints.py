"""One or two bad endpoints of ten: everything is measured, and they get few calls."""

from __future__ import annotations

import random
import socket
from functools import partial

from tests.faults.chaos.endpoint import Behaviour, Endpoint, Script, http, scripted
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import TASKS, FaultContext, stack
from tests.faults.chaos.faults.hostile_responses import raw, reset, silent, slow
from tests.faults.chaos.invariants import hold, injected, whole

MAX_CALLS = 0.05
"""Share of all calls that one bad endpoint of ten may get."""
REPEATS = 6

BAD_BEHAVIOURS: list[tuple[str, Behaviour]] = [
    ("truncated JSON", raw(http(b'{"choices": [{"mess'))),
    ("HTML with status 200", raw(http(b"<html>502 Bad Gateway</html>", kind="text/html"))),
    ("JSON of another shape", raw(http([]))),
    ("empty responses", raw(http({"choices": [{"message": {}}]}))),
    ("status 500", raw(http({"error": {"message": "no"}}, 500))),
    ("status 503", raw(http(b"", 503))),
    ("status 429", raw(http({"error": {"message": "slow down"}}, 429, "retry-after: 1\r\n"))),
    ("status 404", raw(http({"error": {"message": "no such model"}}, 404))),
    ("status 401", raw(http({"error": {"message": "bad key"}}, 401))),
    ("a redirect", raw(http(b"", 302, "location: http://127.0.0.1:1/\r\n"))),
    ("bytes that are not HTTP", raw(b"\x15\x03\x01\x00\x02\x02P", close=True)),
    ("the connection reset", reset),
    ("truncated bodies", raw(http(scripted(0))[:-30], close=True)),
    ("silence", silent),
    ("slow responses", slow),
]


async def of_ten(behaviour: Behaviour | str, bad: int, context: FaultContext, rng: random.Random) -> None:
    """Everything is measured, and each bad endpoint gets less than 5 % of the calls."""
    endpoints = [Endpoint(Script(latency_s=0.1)) for _ in range(10)]
    closed: list[socket.socket] = []
    try:
        for endpoint in endpoints:
            await endpoint.listen()
        bad_endpoints = rng.sample(endpoints, bad)
        for endpoint in bad_endpoints:
            if callable(behaviour):
                endpoint.behaviour = behaviour
            else:
                await endpoint.close()
                if behaviour == "deaf":
                    closed.append(full_backlog(int(endpoint.url.rpartition(":")[2])))
        limits = {"request_timeout_s": 3.0, "retry_pause_s": 0.05}
        async with context.run(stack([endpoint.url for endpoint in endpoints], model=limits), "+colocate=true") as run:
            output = context.output()
            options = ["+num_samples_in_parallel=40", f"+num_repeats={REPEATS}"]
            command = await context.begin(run, output, *options)
            status = await command.ends()
            whole(output, TASKS, REPEATS)
            hold(status == 0, f"ended with {status}")
        calls = sum(endpoint.calls for endpoint in endpoints)
        for endpoint in bad_endpoints:
            if callable(behaviour):
                injected(endpoint.calls, "the bad endpoint was never called")
            hold(endpoint.calls < MAX_CALLS * calls, f"{endpoint.calls} of {calls} calls went to a bad endpoint")
    finally:
        for sock in closed:
            sock.close()
        for endpoint in endpoints:
            await endpoint.close()


def full_backlog(port: int) -> socket.socket:
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


KINDS: list[tuple[str, Behaviour | str]] = [
    *BAD_BEHAVIOURS,
    ("a refused connection", "refused"),
    ("an address whose accept queue is full", "deaf"),
]

FAULTS = [
    Fault(
        f"{'one endpoint' if bad == 1 else 'two endpoints'} of ten: {kind}",
        3,
        "all measured, under 5 % of the calls at each",
        partial(of_ten, behaviour, bad),
        slow=bad > 1
        or kind not in ("truncated JSON", "status 404", "silence", "an address whose accept queue is full"),
    )
    for bad in (1, 2)
    for kind, behaviour in KINDS
]
