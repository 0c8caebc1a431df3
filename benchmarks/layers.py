"""Where the CPU time of a colocated turn goes: the game agent, vllm_model and Sokoban in this process, by layer.

The scripted endpoint runs in another process; the collector and its channel are left out. A timer interrupts the
process every 4 ms of CPU time, and the sample counts for the innermost line of Rollyard's code.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import uvloop

from benchmarks import workloads
from benchmarks.commands import model_endpoint
from benchmarks.tables import table
from rollyard.agents.game_agent.app import GameAgent, GameAgentSettings
from rollyard.records.activity import EPISODE_ID_HEADER
from rollyard.records.run_types import Directory, Keys
from rollyard.records.types import ServerRef
from rollyard.resources_servers.grl_sokoban.app import server as sokoban
from rollyard.responses_api_models.vllm_model.app import VllmModel, VllmModelSettings
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpTransport, LocalTransport, endpoint_transport
from rollyard.services.runtime.process_setup import tune_gc
from rollyard.services.server.app import Context, Server

TURNS = 6
ROLLOUTS = 3200
PARALLEL = 64
EVERY_S = 0.004
"""Linux counts CPU time in ticks of this length."""
LAYERS = (
    ("HTTP to the endpoint", ("services/http/connection_pool.py",)),
    ("calls within the process", ("services/http/", "services/server/", "services/backoff.py")),
    ("agent", ("agents/", "services/rollouts/")),
    (
        "model server: conversion, JSON",
        ("responses_api_models/conversion.py", "responses_api_models/upstream/response_"),
    ),
    ("model server: the rest", ("responses_api_models/",)),
    ("checks of calls and responses", ("services/responses/",)),
    ("environment", ("resources_servers/", "records/")),
)


class Sampler:
    def __init__(self) -> None:
        self.samples: Counter[str] = Counter()

    def hit(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            _, is_ours, path = frame.f_code.co_filename.rpartition("/rollyard/")
            if is_ours:
                self.samples[layer_of(path)] += 1
                return
            frame = frame.f_back
        self.samples[layer_of("")] += 1


def layer_of(path: str) -> str:
    return next((name for name, starts in LAYERS if path.startswith(starts)), "event loop")


async def play(url: str, rows: Sequence[bytes], sampler: Sampler) -> float:
    """Play all rows twice, and sample the second time. Return the microseconds per turn."""
    names = ("model", "environment", "agent")
    urls = {name: f"http://127.0.0.1:{port}" for port, name in enumerate(names, 1)}
    directory = Directory(servers={name: [url] for name, url in urls.items()}, run_id="run", families={}, settings={})

    async def fetch() -> Directory:
        return directory

    transport, endpoints = LocalTransport(HttpTransport()), endpoint_transport({})
    keys = Keys(run_id="run", secret="secret")
    client = ServerClient(transport, keys, AddressBook(fetch))

    def context(name: str) -> Context:
        return Context(name, keys, client, endpoints=endpoints)

    environment_ref = ServerRef(type="resources_servers", name="environment")
    model_ref = ServerRef(type="responses_api_models", name="model")
    settings = GameAgentSettings(resources_server=environment_ref, model_server=model_ref)
    agent = GameAgent(settings, context("agent"))
    model = VllmModel(VllmModelSettings(base_url=f"{url}/v1", model="script"), context("model"))
    servers: Sequence[Server] = (model, sokoban(sokoban.Settings(), context("environment")), agent)
    for server in servers:
        transport.mount(urls[server.name], server, server.answer_locally)
        await server.start()
    serials = itertools.count()

    async def work(bodies: itertools.chain[bytes]) -> None:
        for body in bodies:
            call = RawRequest("/run", {EPISODE_ID_HEADER.encode(): b"%032x" % next(serials)}, body)
            answer = await agent.answer_hot(call)
            assert answer is not None and answer[1].status == 200

    async def collect() -> float:
        bodies = itertools.chain.from_iterable([row] * workloads.REPEATS for row in rows)
        started = time.process_time()
        await asyncio.gather(*(work(bodies) for _ in range(PARALLEL)))
        return time.process_time() - started

    tune_gc()
    await collect()
    signal.signal(signal.SIGPROF, sampler.hit)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
    used_s = await collect()
    signal.setitimer(signal.ITIMER_PROF, 0)
    for server in servers:
        await server.stop()
    await transport.close()
    await endpoints.close()
    return 1e6 * used_s / (ROLLOUTS * TURNS)


def main() -> None:
    sampler = Sampler()
    with TemporaryDirectory() as folder, model_endpoint(turns=TURNS) as script:
        rows = workloads.sokoban_rows(Path(folder) / "rows.jsonl", ROLLOUTS, seed=1, turns=TURNS)
        us = uvloop.run(play(script.url, rows.read_bytes().splitlines(), sampler))
    total = sampler.samples.total()
    lines: list[list[object]] = [[name, us * count / total] for name, count in sampler.samples.most_common()]
    table("a colocated turn", ["layer", "us"], [*lines, ["sum", us]], f"{total} samples")


if __name__ == "__main__":
    main()
