"""The soak's model endpoint: the script, so late, with so many answers of 100 spoilt in one of six ways.

`GET /stats` counts what was done. Faults are drawn by the request's number, so that one seed is one sequence.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
from collections import Counter

import uvloop

from tests.faults.chaos.endpoint import Endpoint, Request, Script, http, later

TORN = http({"id": "x", "choices": [{"message": {"content": "half of"}}]})[:-20]
TORN_JSON = http(b'{"id": "chatcmpl-1", "object": "chat.completion", "choices": [{"index": 0, "mess')
ERROR = http({"error": {"message": "the engine failed", "type": "server_error"}}, 500)
BUSY = http({"error": {"message": "slow down", "type": "requests"}}, 429, "retry-after: 1\r\n")
FAULTS = ("error", "busy", "torn_json", "torn", "reset", "slow")
SLOW_S = 3.0


class Faulty:
    """The script with faults."""

    def __init__(self, latency_s: float, rate: float, seed: int) -> None:
        self._script = Script(latency_s=latency_s)
        self._rate = rate
        self._chance = random.Random(seed)
        self.done: Counter[str] = Counter()

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        if request.head.startswith(b"GET /stats"):
            transport.write(http(dict(self.done)))
            return
        fault = self._chance.choice(FAULTS) if self._chance.random() < self._rate else "none"
        self.done[fault] += 1
        latency_s = self._script.latency_s
        match fault:
            case "error":
                later(transport, latency_s, ERROR)
            case "busy":
                later(transport, latency_s, BUSY)
            case "torn_json":
                later(transport, latency_s, TORN_JSON)
            case "torn":
                later(transport, latency_s, TORN)
                asyncio.get_running_loop().call_later(latency_s + 0.05, transport.close)
            case "reset":
                asyncio.get_running_loop().call_later(latency_s, transport.abort)
            case _:
                later(transport, SLOW_S if fault == "slow" else latency_s, self._script.answer(request))


async def serve(latency_s: float, rate: float, seed: int) -> None:
    """Answer until ended; the first line printed is the address."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with Endpoint(Faulty(latency_s, rate, seed)).up() as endpoint:
        print(endpoint.url, flush=True)
        gc.freeze()
        await asyncio.get_running_loop().create_future()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--fault-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    uvloop.run(serve(options.latency_ms / 1000, options.fault_rate, options.seed))


if __name__ == "__main__":
    main()
