"""The model endpoint of the soak test: the script with a latency and seven kinds of faults at a given rate.

`GET /stats` returns how often each fault was injected. A seed determines the sequence of faults.
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
FAULTS = ("error", "busy", "torn_json", "torn", "reset", "slow", "hang")
SLOW_S = 3.0


class Faulty:
    """The script with random faults."""

    def __init__(self, latency_s: float, rate: float, seed: int) -> None:
        self._script = Script(latency_s=latency_s)
        self._rate = rate
        self._rng = random.Random(seed)
        self.injected: Counter[str] = Counter()

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        if request.head.startswith(b"GET /stats"):
            transport.write(http(dict(self.injected)))
            return
        fault = self._rng.choice(FAULTS) if self._rng.random() < self._rate else "none"
        self.injected[fault] += 1
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
            case "hang":
                pass
            case _:
                later(transport, SLOW_S if fault == "slow" else latency_s, self._script.answer(request))


async def serve(latency_s: float, rate: float, seed: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    async with Endpoint(Faulty(latency_s, rate, seed)).up() as endpoint:
        print(endpoint.url, flush=True)
        gc.freeze()
        await asyncio.get_running_loop().create_future()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--fault-rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    uvloop.run(serve(options.latency_ms / 1000, options.fault_rate, options.seed))


if __name__ == "__main__":
    main()
