"""CPU of a model call with its tokens on record: vllm_model before an engine that costs nothing.

Counted is the CPU time of the model server's process alone, from /proc/<pid>/stat before and after. The calls are an
agent's: POST /v1/responses, each with the conversation so far and the tokens of the turn before. The prompts of an
episode's 6 turns grow from 500 to 4,000 ids; each turn is 100 ids long, with their logprobs. A row of the table is one
kind of call, asked again and again by so many callers at once:

    no tokens      the same conversation without any, to compare with
    turn 1         the first call of an episode: as messages, or rendered and sent as ids through
                   /inference/v1/generate, whose answer names the weight version of each token
    later turns    2 to 6 in their order, by the way that the settings choose: as messages (`chat`, token_in off), or as
                   ids through /inference/v1/generate or /v1/completions
    turn 6         the longest of them alone, for the record: 4,000 ids to the engine and back to the caller

Of `--rounds` the best counts, because other work on the machine only ever adds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import uvloop

from benchmarks import token_engine
from benchmarks.commands import Broken, Config, Run, endpoint, stack
from benchmarks.processes import cpu_s
from benchmarks.tables import table, verdict
from rollyard.agents.conversation import Conversation
from rollyard.services.http.client import EPISODE_HEADER
from rollyard.services.http.transport import HttpTransport, Transport
from rollyard.services.rollout_types import ResponseItem
from rollyard.services.runtime.process_setup import raise_file_limit
from rollyard.services.types import Json

PARALLEL = (1, 16, 64, 256, 1024)
CALLS = {1: 300, 16: 800, 64: 800, 256: 1024, 1024: 2048}
MS_A_CALL = 1.0
WAYS: dict[str, Json] = {
    "none": {"return_token_id_information": False},
    "chat": {"token_in": "off"},
    "generate": {"token_in": "generate"},
    "completions": {"token_in": "completions", "text_tool_parser": "hermes"},
}
"""Server name -> what its settings say about tokens."""


@dataclass(frozen=True)
class Kind:
    """A row of the table: which of an episode's calls, to which server."""

    title: str
    way: str
    turns: slice
    bound: bool = True
    """Whether the claim is about it."""


KINDS = (
    Kind("no tokens, turn 1", "none", slice(0, 1)),
    Kind("no tokens, later turns", "none", slice(1, None)),
    Kind("turn 1, chat", "chat", slice(0, 1)),
    Kind("turn 1, generate", "generate", slice(0, 1)),
    Kind("later turns, chat", "chat", slice(1, None)),
    Kind("later turns, generate", "generate", slice(1, None)),
    Kind("later turns, completions", "completions", slice(1, None)),
    Kind("turn 6, generate", "generate", slice(token_engine.TURNS - 1, None), bound=False),
)


def servers(engine_url: str) -> Config:
    """A model server for each way, before the same engine."""
    common = {"base_url": f"{engine_url}/v1", "api_key": "none", "model": "tiny", "return_token_id_information": True}
    common |= {"logprobs_mode": "raw_logprobs"}  # the engine's numbers are the same at every temperature
    return {name: {"responses_api_models": {"vllm_model": {**common, **way}}} for name, way in WAYS.items()}


class Caller:
    """Calls of agents to one model server."""

    def __init__(self, transport: Transport, url: str) -> None:
        self._transport = transport
        self._url = f"{url}/v1/responses"

    async def episode(self, way: str) -> list[bytes]:
        """The bodies of an episode's calls, as its agent makes them. Raises Broken when a turn went another way."""
        params: Json = {"tools": [token_engine.TOOL], "temperature": 1.0, "max_output_tokens": 512}
        conversation = Conversation({**params, "input": "Solve this Sokoban puzzle. " * 20})
        bodies: list[bytes] = []
        for turn in range(token_engine.TURNS):
            bodies.append(conversation.request())
            response = orjson.loads(await self._call(bodies[-1], "walk"))
            conversation.add(response)
            last = response["output"][-1]
            trace = last.get("token_trace") or {}
            wanted = None if way == "none" else "chat" if turn == 0 and way != "generate" else way
            if trace.get("way") != wanted or "break" in trace:
                raise Broken(f"{way}, turn {turn + 1}: {trace}")
            output: ResponseItem = {
                "type": "function_call_output",
                "call_id": last["call_id"],
                "output": token_engine.OBSERVATION,
            }
            conversation.answer(output)
        return bodies

    async def load(self, bodies: Sequence[bytes], parallel: int, calls: int) -> None:
        """So many calls, so many at once, each body in its turn."""
        left = itertools.islice(itertools.cycle(bodies), calls)

        async def one(name: str) -> None:
            for body in left:
                await self._call(body, name)

        await asyncio.gather(*(one(f"episode{number}") for number in range(parallel)))

    async def _call(self, body: bytes, episode: str) -> bytes:
        headers = {"content-type": "application/json", EPISODE_HEADER: episode}
        answer = await self._transport.send("POST", self._url, body, headers, 120.0)
        if answer.status != 200:
            raise Broken(f"the model server answered {answer.status}: {answer.body[:300]!r}")
        return answer.body


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    parallel: Sequence[int] = PARALLEL
    scale: float = 1.0
    """Of the calls."""
    rounds: int = 2
    """Of them the best counts."""


QUICK = Effort((64,), 0.2, 1)


async def measure(run: Run, kind: Kind, effort: Effort) -> list[float]:
    """Milliseconds of CPU a call, for each number in parallel."""
    found: list[float] = []
    for parallel in effort.parallel:
        # A transport a point: connections that have idled since another one would be closed in it.
        transport = HttpTransport()
        try:
            caller = Caller(transport, run.urls[kind.way])
            bodies = (await caller.episode(kind.way))[kind.turns]
            calls = round(CALLS[parallel] * effort.scale)
            await caller.load(bodies, parallel, max(calls // 5, parallel))
            spent: list[float] = []
            for _ in range(effort.rounds):
                before = cpu_s(run.pids[kind.way])
                await caller.load(bodies, parallel, calls)
                spent.append(cpu_s(run.pids[kind.way]) - before)
        finally:
            await transport.close()
        found.append(1000 * min(spent) / calls)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test: 64 at once, few calls, one round")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each point; the best counts")
    options = parser.parse_args(arguments)
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
            claim = [f"<={MS_A_CALL}", verdict(max(found) <= MS_A_CALL)] if kind.bound else ["", ""]
            rows.append([kind.title, *claim, *found])
    head = ["", "target", "", *(f"{number:,} at once" for number in effort.parallel)]
    table("vllm_model with tokens on record: ms of its CPU a call, the engine's own not counted", head, rows)


if __name__ == "__main__":
    main()
