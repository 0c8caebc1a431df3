"""What others write, on its way to a terminal."""

from __future__ import annotations

import asyncio
import random

import orjson
from omegaconf import OmegaConf

from tests.faults.chaos.endpoint import Request, http, later
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import ENVIRONMENT, FaultContext
from tests.faults.chaos.invariants import RAW, hold, injected

ESCAPES = "\x1b]0;pwned\x07\x1b[2J\x1b[31mred\x9b31m\x08\x08\r\x00"


async def escapes(context: FaultContext, chance: random.Random) -> None:
    """Escape sequences of an endpoint's error, of an agent's answer and of rows reach no terminal raw."""

    def bad(request: Request, transport: asyncio.Transport) -> None:
        later(transport, 0.0, http({"error": {"message": f"no {ESCAPES} no", "type": ESCAPES}}, 400))

    output = context.output()
    rows = output.with_name("input.jsonl")
    params = {"input": "play"}
    row = {"responses_create_params": params, "id": 0, "dataset_name": ESCAPES, "level_id": ESCAPES}
    rows.write_bytes(orjson.dumps(row) + b"\n" + orjson.dumps({**row, "id": 1}) + b"\n")
    heard: list[tuple[str, str]] = []
    async with context.playing(bad) as (run, endpoint):
        command = await context.begin(run, output, "+max_attempts=1", "+max_failure_rate=1", rows=rows)
        await command.ends()
        injected(
            endpoint.calls and "no " in command.said, f"the endpoint's words were not shown: {command.said[-300:]}"
        )
        heard.append(("ng_collect_rollouts", command.said))
        for name, arguments in (
            ("ng_status", (f"+head={run.head}",)),
            ("ng_reward_profile", (f"+jsonl_fpath={output}",)),
        ):
            asked = await context.start(name, *arguments)
            await asked.ends()
            heard.append((name, asked.said))
        heard.append(("ng_run", run.command.said))
    odd = output.with_name("odd.jsonl")
    named = {"responses_create_params": params, "agent_ref": {"name": ESCAPES}}
    odd.write_bytes(orjson.dumps(named) + b"\n")
    run, _ = await context.plain()
    command = await context.begin(run, context.output(), rows=odd)
    await command.ends()
    heard.append(("ng_collect_rollouts with a foreign agent_ref", command.said))
    broken = await context.start("ng_run", f"+config_paths=[{_loud(context)}]", "+head_port=0")
    await broken.ends()
    injected("pwned" in broken.said, f"the server's last words were not shown: {broken.said[-300:]}")
    heard.append(("ng_run with a server that dies", broken.said))
    for name, said in heard:
        found = RAW.search(said.replace("\r\n", "\n"))
        hold(
            not found,
            f"{name} prints {found.group()!r} raw: {said[max(found.start() - 60, 0) : found.end() + 20]!r}"
            if found
            else "",
        )


def _loud(context: FaultContext) -> str:
    """A config whose environment fails at the start with escape sequences in its message."""
    path = context.path("loud.yaml")
    made = {ENVIRONMENT: {"resources_servers": {"witness": {"start_words": ESCAPES.replace("\x00", "")}}}}
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(made)))
    return str(path)


FAULTS = [
    Fault("escape sequences in error messages and rows", 4, "reach the terminal", "shown escaped", escapes),
]
