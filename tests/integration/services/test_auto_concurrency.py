"""`num_samples_in_parallel="auto"` over a real stack, in front of an engine that reports its queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

import rollyard
from benchmarks.scripted_model import Connection, Engine, Script
from benchmarks.workloads import game
from rollyard.records.activity import LOAD_PATH, ModelLoad
from rollyard.records.rollout_file import RolloutPaths, read_status
from rollyard.services.runtime.running_stack import RunningStack
from tests.support.stacks import EXAMPLES, keys_of, read_rows
from tests.support.waiting import deadline_s

CAPACITY, TURNS = 2, 2
REPEATS = 30
ROWS = [orjson.loads(line) for line in EXAMPLES.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(latency_s=0.04, capacity=CAPACITY)


@pytest.fixture(scope="module")
async def stack(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningStack]:
    script = Script(TURNS)

    def answer(request: bytes) -> bytes:
        return engine.metrics() if request.startswith(b"GET /metrics") else script.answer(request)

    server = await asyncio.get_running_loop().create_server(lambda: Connection(answer, engine), "127.0.0.1", 0)
    config = game(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server, rollyard.stack(config, colocate=True, folder=tmp_path_factory.mktemp("run")) as running:
        yield running


async def test_calls_that_would_wait_in_the_engine_are_not_sent(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    await rollyard.collect(stack, ROWS, out, num_repeats=REPEATS, num_samples_in_parallel="auto")
    assert keys_of(read_rows(out)) == [(task, repeat) for task in range(len(ROWS)) for repeat in range(REPEATS)]
    status = read_status(out)
    assert status is not None and status.concurrency is not None
    assert CAPACITY <= status.concurrency < 16


async def test_the_found_number_is_no_part_of_what_a_run_is(stack: RunningStack, tmp_path: Path) -> None:
    out = tmp_path / "rollouts.jsonl"
    await rollyard.collect(stack, ROWS, out, num_samples_in_parallel="auto")
    before = RolloutPaths(out).manifest.read_bytes()
    summary = await rollyard.collect(stack, ROWS, out, num_samples_in_parallel=4)
    assert (summary.state, summary.collected) == ("complete", 0)
    assert RolloutPaths(out).manifest.read_bytes() == before


async def test_a_model_server_reports_its_calls_and_its_engines_load(stack: RunningStack, engine: Engine) -> None:
    client, count = stack.access.clients.client, 6
    [url] = (await client.book.current()).servers["model"]

    async def load() -> ModelLoad:
        return ModelLoad.model_validate_json((await client.get_from(url, LOAD_PATH, deadline_s())).body)

    before, engine.capacity = await load(), 0
    body = orjson.dumps({"model": "m", "input": "Hello."})
    given = [client.post("model", "/v1/responses", body, deadline_s()) for _ in range(count)]
    calls = [asyncio.create_task(call) for call in given]
    async with asyncio.timeout(deadline_s()):
        while len(engine.waiting) < count:
            await asyncio.sleep(0)
    assert (await load()).model_dump() == {
        **before.model_dump(),
        "in_flight": count,
        "engine": {"running": 0, "waiting": count, "kv_cache_usage": 0.0, "preemptions": 0},
    }
    engine.capacity = CAPACITY
    engine.call(lambda: None)
    await asyncio.gather(*calls)
    after = await load()
    assert (after.finished - before.finished, after.failed, after.in_flight) == (count, before.failed, 0)
    assert after.seconds > before.seconds
