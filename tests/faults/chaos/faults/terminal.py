"""Text of endpoints, agents and rows in the output of commands."""

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


async def escapes(context: FaultContext, rng: random.Random) -> None:
    """Escape sequences in an endpoint's error, an agent's response or a row are escaped in every output."""

    def bad(request: Request, transport: asyncio.Transport) -> None:
        later(transport, 0.0, http({"error": {"message": f"no {ESCAPES} no", "type": ESCAPES}}, 400))

    output = context.output()
    rows = output.with_name("input.jsonl")
    params = {"input": "play"}
    row = {"responses_create_params": params, "id": 0, "dataset_name": ESCAPES, "level_id": ESCAPES}
    rows.write_bytes(orjson.dumps(row) + b"\n" + orjson.dumps({**row, "id": 1}) + b"\n")
    outputs: list[tuple[str, str]] = []
    async with context.playing(bad) as (run, endpoint):
        command = await context.begin(run, output, "+max_attempts=1", "+max_failure_rate=1", rows=rows)
        await command.exit_status()
        injected(
            endpoint.calls and "no " in command.output, f"the endpoint's message was not shown: {command.output[-300:]}"
        )
        outputs.append(("ng_collect_rollouts", command.output))
        for name, arguments in (
            ("ng_status", (f"+head={run.head}",)),
            ("ng_reward_profile", (f"+jsonl_fpath={output}",)),
        ):
            command = await context.start(name, *arguments)
            await command.exit_status()
            outputs.append((name, command.output))
        outputs.append(("ng_run", run.command.output))
    odd = output.with_name("odd.jsonl")
    row = {"responses_create_params": params, "agent_ref": {"name": ESCAPES}}
    odd.write_bytes(orjson.dumps(row) + b"\n")
    run, _ = await context.plain()
    command = await context.begin(run, context.output(), rows=odd)
    await command.exit_status()
    outputs.append(("ng_collect_rollouts with a foreign agent_ref", command.output))
    broken = await context.start("ng_run", f"+config_paths=[{_loud(context)}]", "+head_port=0")
    await broken.exit_status()
    injected("pwned" in broken.output, f"the server's last output was not shown: {broken.output[-300:]}")
    outputs.append(("ng_run with a server that dies", broken.output))
    for name, output_text in outputs:
        match = RAW.search(output_text.replace("\r\n", "\n"))
        hold(
            not match,
            f"{name} prints {match.group()!r} raw: {output_text[max(match.start() - 60, 0) : match.end() + 20]!r}"
            if match
            else "",
        )


def _loud(context: FaultContext) -> str:
    """A config whose environment fails at the start with escape sequences in its message."""
    path = context.path("loud.yaml")
    config = {ENVIRONMENT: {"resources_servers": {"witness": {"start_error": ESCAPES.replace("\x00", "")}}}}
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    return str(path)


FAULTS = [Fault("escape sequences in error messages and rows", 4, "shown escaped", escapes)]
