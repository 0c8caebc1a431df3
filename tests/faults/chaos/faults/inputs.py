"""Inputs and code that change during a collection or between two commands."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.chaos.endpoint import Endpoint, Script
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import ENVIRONMENT, QUICK, REPEATS, TASKS, FaultContext, stack, written
from tests.faults.chaos.invariants import hold, incomplete, injected, read, whole
from tests.faults.chaos.plugins import write_rows

Change = Callable[[Path], object]
MANY = 400
"""Rows of an input that does not fit into any buffer."""


def edited(path: Path) -> None:
    data = path.read_bytes()
    half = data.index(b"\n", len(data) // 2) + 1
    with path.open("r+b") as file:
        file.seek(half)
        file.write(data[half:].replace(b"Take your time", b"Hurry up a bit"))


def grown(path: Path) -> None:
    with path.open("ab") as file:
        for number in range(MANY, MANY + 30):
            file.write(path.read_bytes().splitlines()[0].replace(b'"id":0', b'"id":%d' % number) + b"\n")


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes().replace(b"Take your time", b"Hurry up a bit"))
    other.replace(path)


def swapped(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    with path.open("r+b") as file:
        file.write(b"".join([*lines[:-2], lines[-1], lines[-2]]))


CHANGES: dict[str, Change] = {
    "edited in place": edited,
    "growing": grown,
    "shrinking": lambda path: os.truncate(path, path.read_bytes().index(b"\n", path.stat().st_size * 2 // 3) + 1),
    "cut within a row": lambda path: os.truncate(path, path.stat().st_size * 2 // 3),
    "replaced": replaced,
    "removed": Path.unlink,
    "reordered": swapped,
}


async def while_reading(change: Change, context: FaultContext, rng: random.Random) -> None:
    """Exit status 0 only with the rows of the manifest; otherwise the input is named, and restoring it completes."""
    run, _ = await context.plain()
    output = context.output()
    rows = write_rows(output.with_name("input.jsonl"), MANY, pad=4000)
    before = rows.read_bytes()
    command = await context.begin(run, output, "+num_repeats=1", rows=rows)
    injected(await written(output, rng.randrange(5, MANY // 4), command), "the collection ended too early")
    change(rows)
    injected(not rows.exists() or rows.read_bytes() != before, "the input is unchanged")
    status = await command.ends()
    if status == 0:
        hold(not (why := incomplete(output, MANY, 1)), f"exit 0, and {why}")
        other = sum("Hurry" in row["responses_create_params"]["input"][0]["content"] for row in read(output))
        hold(not other, f"exit 0, and {other} of {MANY} rows are not those of the manifest")
        return
    hold("input.jsonl" in command.output, f"exit {status}, and the input is not named: {command.output[-400:]}")
    rows.write_bytes(before)
    again = await context.begin(run, output, "+num_repeats=1", rows=rows)
    status = await again.exit_status()
    hold(status == 0, f"with the input restored it ends with {status}: {again.output[-500:]}")
    whole(output, MANY, 1)


ODD_LINES: list[tuple[str, bytes]] = [
    *(
        (
            f"nested {depth:,} deep",
            b'{"id": 7, "deep": %b%b, "responses_create_params": {"input": "x"}}' % (b"[" * depth, b"]" * depth),
        )
        for depth in (2000, 400)
    ),
    ("with a lone surrogate", rb'{"id": 7, "text": "\ud83d", "responses_create_params": {"input": "x"}}'),
    ("with NaN", b'{"id": 7, "number": NaN, "responses_create_params": {"input": "x"}}'),
    ("that is not an object", b"[7]"),
    ("that is truncated", b'{"id": 7, "responses_create_params": {"inp'),
    ("without an input", b'{"id": 7, "responses_create_params": {}}'),
    ("that is not UTF-8", b'{"id": 7, "text": "\xff\xfe", "responses_create_params": {"input": "x"}}'),
]


async def odd_line(line: bytes, context: FaultContext, rng: random.Random) -> None:
    """The line is named before anything starts, or only its rollout fails and all others are measured."""
    run, _ = await context.plain()
    output = context.output()
    rows = output.with_name("input.jsonl")
    lines = context.rows.read_bytes().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = line
    rows.write_bytes(b"\n".join(lines) + b"\n")
    command = await context.begin(run, output, "+num_repeats=1", "+max_attempts=1", rows=rows)
    status = await command.ends()
    measured = {row["_ng_task_index"] for row in read(output)}
    if not measured:
        hold(status == 2, f"ended with {status}, and nothing is measured: {command.output[-300:]}")
        named = re.search(rf"\b(line|row) {at + 1}\b", command.output)
        hold(named, f"line {at + 1} is not named: {command.output[-300:]}")
        return
    others = set(range(TASKS)) - {at}
    hold(others <= measured, f"{len(others - measured)} other rows are not measured: {command.output[-300:]}")
    hold(status == (0 if at in measured else 1), f"ended with {status}, {len(measured)} of {TASKS} measured")


def other_reward(folder: Path) -> None:
    path = folder / "resources_servers/witness/app.py"
    path.write_text(path.read_text().replace("REWARD = 1.0", "REWARD = 100.0"))


def other_helper(folder: Path) -> None:
    (folder / "resources_servers/witness/scale.py").write_text("SCALE = 100.0\n")


def other_agent(folder: Path) -> None:
    path = folder / "agents/blocking_agent/app.py"
    path.write_text(path.read_text() + "\n# plays otherwise now\n")


async def between_commands(
    change: Callable[[Path], None], agent: str, context: FaultContext, rng: random.Random
) -> None:
    """After a code change the same command is refused with the changed files, or continues and marks the rows."""
    here = _own_folder(context)
    output = context.output()
    async with Endpoint(Script(latency_s=QUICK)).up() as endpoint:
        config = stack(endpoint.url, agent=agent)
        async with context.run(config, here=here) as run:
            command = await context.begin(run, output)
            injected(await written(output, 20, command), "the collection ended too early")
            command.signal(signal.SIGTERM)
            await command.exit_status()
        rows_before = len(read(output))
        injected(0 < rows_before < TASKS * REPEATS, f"{rows_before} rollouts before the change")
        change(here)
        async with context.run(config, here=here) as run:
            again = await context.begin(run, output)
            status = await again.ends()
            rewards = sorted({row["reward"] for row in read(output)})
            hold(status == 2, f"exit {status}, rewards {rewards}, and no message about it")
            hold(
                "witness" in again.output or "blocking_agent" in again.output,
                f"the changed server is not named: {again.output}",
            )
            accepted = await context.begin(run, output, "+accept_changed_code=true")
            status = await accepted.exit_status()
            hold(status == 0, f"+accept_changed_code=true ends with {status}: {accepted.output[-500:]}")
            rows = read(output)
            unmarked = [set(row) for row in rows[:rows_before]]
            marked = [set(row) - unmarked[0] for row in rows[rows_before:]]
            hold(marked and all(marked), "rows of the changed code are not marked")


async def between_restarts(context: FaultContext, rng: random.Random) -> None:
    """The code of the environment is edited, and its server dies and restarts: no collection mixes both versions."""
    here = _own_folder(context)
    output = context.output()
    async with context.playing(here=here) as (run, _):
        command = await context.begin(run, output, "+max_attempts=20")
        injected(await written(output, 20, command), "the collection ended too early")
        other_reward(here)
        pid = await run.pid(ENVIRONMENT)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        status = await command.ends()
        rows = read(output)
        rewards = {row["reward"] for row in rows}
        if status == 0:
            plain = {frozenset(row) for row in rows if row["reward"] == 1.0}
            marked = all(frozenset(row) not in plain for row in rows if row["reward"] != 1.0)
            hold(len(rewards) == 1 or marked, f"exit 0 with rewards {sorted(rewards)} mixed without marks")
            injected(len(rewards) > 1 or command.output, "the new code was never run")
        else:
            hold(
                "witness" in command.output or "code" in command.output,
                f"the reason is not given: {command.output[-400:]}",
            )


async def unrelated_server(context: FaultContext, rng: random.Random) -> None:
    """A further server in ng_run does not affect rows that do not reach it: the collection resumes."""
    here = _own_folder(context)
    output = context.output()
    async with Endpoint(Script(latency_s=QUICK)).up() as endpoint:
        config = stack(endpoint.url)
        async with context.run(config, here=here) as run:
            command = await context.begin(run, output)
            injected(await written(output, 20, command), "the collection ended too early")
            command.signal(signal.SIGTERM)
            await command.exit_status()
        more = {**config, "another": {"resources_servers": {"grl_sokoban": {}}}, "odd": {"agents": {"odd_agent": {}}}}
        async with context.run(more, here=here) as run:
            await context.completes(run, output)


def _own_folder(context: FaultContext) -> Path:
    here = context.path("user")
    for family in ("resources_servers", "agents"):
        shutil.copytree(context.folder / family, here / family, ignore=shutil.ignore_patterns("__pycache__"))
    return here


REFUSED = "refused with the changed files; `+accept_changed_code=true` continues and marks the rows"

FAULTS = [
    *(
        Fault(
            f"input {how} while it is read",
            2,
            "stops and names the input; resumes with the old input",
            partial(while_reading, change),
            slow=how not in ("edited in place", "growing"),
        )
        for how, change in CHANGES.items()
    ),
    *(
        Fault(
            f"an input line {how}",
            2,
            "line named before anything starts, or one failed rollout",
            partial(odd_line, line),
            slow=number > 1,
        )
        for number, (how, line) in enumerate(ODD_LINES)
    ),
    Fault(
        "environment code edited between two commands",
        2,
        REFUSED,
        partial(between_commands, other_reward, "game_agent"),
    ),
    Fault(
        "a module added to the environment between two commands",
        2,
        REFUSED,
        partial(between_commands, other_helper, "game_agent"),
        slow=True,
    ),
    Fault(
        "agent code edited between two commands",
        2,
        REFUSED,
        partial(between_commands, other_agent, "blocking_agent"),
        slow=True,
    ),
    Fault(
        "environment code edited before its server is restarted",
        2,
        "never mixed without a mark",
        between_restarts,
        slow=True,
    ),
    Fault("an unrelated server added to ng_run", 2, "continues", unrelated_server),
]
