"""CPU time of a model call with recorded tokens: vllm_model in front of an engine with almost no CPU cost.

The result is the CPU time of the model server's process alone, from /proc/<pid>/stat before and after. The calls are
those of an agent: POST /v1/responses, each with the conversation so far and the tokens of the previous turn. The
prompts of an episode's 6 turns grow from 500 to 4,000 ids; each turn has 100 ids with their logprobs. Each row of the
table is one kind of call, repeated by the given number of concurrent callers:

    no tokens      the same conversation without tokens, for comparison
    turn 1         the first call of an episode: as messages, or rendered and sent as ids to /inference/v1/generate,
                   whose response contains the weight version of each token
    later turns    turns 2 to 6 in order, over the token backend in the settings: as messages (`chat`, token_in off), or
                   as ids to /inference/v1/generate or /v1/completions
    turn 6         only the longest turn, without a target: 4,000 ids to the engine and back to the caller

The best of `--rounds` measurements is reported, because other load on the host only increases the CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import uvloop

from benchmarks import token_engine
from benchmarks.commands import BenchmarkError, Config, Run, endpoint, stack
from benchmarks.processes import cpu_s
from benchmarks.tables import table, verdict, write_section
from rollyard.agents.episode import Conversation
from rollyard.records.rollout_types import ResponseItem
from rollyard.records.types import Json
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.transport import HttpTransport, Transport
from rollyard.services.runtime.process_setup import raise_file_limit

PARALLEL = (1, 16, 64, 256, 1024)
CALLS = {1: 300, 16: 800, 64: 800, 256: 1024, 1024: 2048}
MAX_MS_PER_CALL = 1.0
BACKENDS: dict[str, Json] = {
    "none": {"return_token_id_information": False},
    "chat": {"token_in": "off"},
    "generate": {"token_in": "generate"},
    "completions": {"token_in": "completions", "text_tool_parser": "hermes"},
}
"""Server name -> its token settings."""


@dataclass(frozen=True)
class Kind:
    """A row of the table: which calls of an episode, to which server."""

    title: str
    backend: str
    turns: slice
    has_target: bool = True


KINDS = (
    Kind("no tokens, turn 1", "none", slice(0, 1)),
    Kind("no tokens, later turns", "none", slice(1, None)),
    Kind("turn 1, chat", "chat", slice(0, 1)),
    Kind("turn 1, generate", "generate", slice(0, 1)),
    Kind("later turns, chat", "chat", slice(1, None)),
    Kind("later turns, generate", "generate", slice(1, None)),
    Kind("later turns, completions", "completions", slice(1, None)),
    Kind("turn 6, generate", "generate", slice(token_engine.TURNS - 1, None), has_target=False),
)


def servers(engine_url: str) -> Config:
    """Return the config: one model server per token backend, all in front of the same engine."""
    common = {"base_url": f"{engine_url}/v1", "api_key": "none", "model": "tiny", "return_token_id_information": True}
    common |= {"logprobs_mode": "raw_logprobs"}  # the engine's numbers are the same at every temperature
    return {name: {"responses_api_models": {"vllm_model": {**common, **tokens}}} for name, tokens in BACKENDS.items()}


class Caller:
    """Calls one model server as agents do."""

    def __init__(self, transport: Transport, url: str) -> None:
        self._transport = transport
        self._url = f"{url}/v1/responses"

    async def episode(self, backend: str) -> list[bytes]:
        """Return the request bodies of an episode. Raises BenchmarkError if a turn used another token backend."""
        params: Json = {"tools": [token_engine.TOOL], "temperature": 1.0, "max_output_tokens": 512}
        conversation = Conversation({**params, "input": "Solve this Sokoban puzzle. " * 20})
        bodies: list[bytes] = []
        for turn in range(token_engine.TURNS):
            bodies.append(conversation.request())
            response = orjson.loads(await self._call(bodies[-1], "walk"))
            conversation.add(response)
            last = response["output"][-1]
            trace = last.get("token_trace") or {}
            expected = None
            if backend != "none":
                expected = "chat" if turn == 0 and backend != "generate" else backend
            if trace.get("way") != expected or "break" in trace:
                raise BenchmarkError(f"{backend}, turn {turn + 1}: {trace}")
            output: ResponseItem = {
                "type": "function_call_output",
                "call_id": last["call_id"],
                "output": token_engine.OBSERVATION,
            }
            conversation.answer(output)
        return bodies

    async def load(self, bodies: Sequence[bytes], parallel: int, calls: int) -> None:
        """Make `calls` calls, `parallel` at a time, cycling through the bodies."""
        remaining = itertools.islice(itertools.cycle(bodies), calls)

        async def one(name: str) -> None:
            for body in remaining:
                await self._call(body, name)

        await asyncio.gather(*(one(f"episode{number}") for number in range(parallel)))

    async def _call(self, body: bytes, episode: str) -> bytes:
        headers = {"content-type": "application/json", EPISODE_HEADER: episode}
        response = await self._transport.send("POST", self._url, body, headers, 120.0)
        if response.status != 200:
            raise BenchmarkError(f"the model server returned status {response.status}: {response.body[:300]!r}")
        return response.body


@dataclass(frozen=True)
class Effort:
    """How much to measure."""

    parallel: Sequence[int] = PARALLEL
    scale: float = 1.0
    """Factor on the number of calls."""
    rounds: int = 2
    """The best one is reported."""


QUICK = Effort((64,), 0.2, 1)


async def measure(run: Run, kind: Kind, effort: Effort) -> list[float]:
    """Return the milliseconds of CPU per call, for each degree of parallelism."""
    found: list[float] = []
    for parallel in effort.parallel:
        # A new transport per measurement: the server closes connections that were idle during another one.
        transport = HttpTransport()
        try:
            caller = Caller(transport, run.urls[kind.backend])
            bodies = (await caller.episode(kind.backend))[kind.turns]
            calls = round(CALLS[parallel] * effort.scale)
            await caller.load(bodies, parallel, max(calls // 5, parallel))
            spent: list[float] = []
            for _ in range(effort.rounds):
                before = cpu_s(run.pids[kind.backend])
                await caller.load(bodies, parallel, calls)
                spent.append(cpu_s(run.pids[kind.backend]) - before)
        finally:
            await transport.close()
        found.append(1000 * min(spent) / calls)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smoke test: 64 at once, few calls, one round")
    parser.add_argument("--rounds", type=int, default=2, help="measurements per point; the best one is reported")
    parser.add_argument("--write", type=Path, help="page whose table to replace")
    options = parser.parse_args(arguments)
    load = os.getloadavg()[0]
    effort = QUICK if options.quick else Effort(rounds=options.rounds)
    raise_file_limit()
    rows: list[list[object]] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        endpoint("benchmarks.token_engine") as engine,
        stack(Path(temporary), servers(engine.url)) as run,
    ):
        for kind in KINDS:
            found = uvloop.run(measure(run, kind, effort))
            target = [f"<={MAX_MS_PER_CALL}", verdict(max(found) <= MAX_MS_PER_CALL)] if kind.has_target else ["", ""]
            rows.append([kind.title, *target, *found])
    head = ["", "target", "", *(f"{number:,} at once" for number in effort.parallel)]
    table("vllm_model with recorded tokens: milliseconds of its CPU per call, excluding the engine", head, rows)
    if options.write:
        shown = ("ms of the model server's CPU per call", ["", *head[3:]], [[row[0], *row[3:]] for row in rows])
        write_section(options.write, "tokens", load, [shown])


if __name__ == "__main__":
    main()
