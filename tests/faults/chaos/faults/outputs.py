"""Output files of a collection that other programs move or change during the collection or before a resume."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import orjson

from tests.faults.chaos.endpoint import Request, Script, http, later
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import QUICK, REPEATS, TASKS, FaultContext, written
from tests.faults.chaos.invariants import Broken, hold, incomplete, injected, read, whole

WHOLE = TASKS * REPEATS
Change = Callable[[Path], object]


def append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line + b"\n")


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    other.replace(path)


def edited(path: Path) -> None:
    data = path.read_bytes().replace(b'"reward":1.0', b'"reward":0.5', 1)
    with path.open("r+b") as file:
        file.write(data)


def remove_folder(path: Path) -> None:
    """Like `rm -r` in a loop: the collector may create a file between the last removal and that of the folder."""
    for _ in range(100):
        shutil.rmtree(path.parent, ignore_errors=True)
        if not path.parent.exists():
            return
    raise OSError(f"{path.parent} is still there after 100 removals")


CHANGES: dict[str, Change] = {
    "renamed": lambda path: path.rename(path.with_name(f"moved-{path.name}")),
    "removed": Path.unlink,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "appended to": lambda path: append(path, b'{"note": "another program wrote this"}'),
    "given a duplicate line": lambda path: append(path, path.read_bytes().split(b"\n")[0]),
    "replaced": replaced,
    "edited in place": edited,
    "lost because its folder is renamed": lambda path: path.parent.rename(f"{path.parent}-moved"),
    "lost because its folder is removed": remove_folder,
}


async def while_collecting(change: Change, suffix: str, context: FaultContext, rng: random.Random) -> None:
    """Exit status 0 only if the output is complete; else a message names the file, and the next command recovers."""
    run, _ = await context.plain()
    output = context.output()
    path = output if not suffix else output.with_name(f"rollouts_{suffix}")
    command = await context.begin(run, output)
    injected(await written(output, rng.randrange(10, WHOLE // 2), command), "the collection ended too early")
    before = path.read_bytes() if path.exists() else b""
    injected(before, f"{path.name} was not there yet")
    change(path)
    status = await command.ends()
    if change is edited and status:
        # An edit can only be detected while the file is watched, so a message is all that can be expected.
        hold(path.name in command.output, f"exit {status}, and {path.name} is not named: {command.output[-400:]}")
        return
    await ends_well(context, output, status, command.output, path.name)


async def ends_well(context: FaultContext, output: Path, status: int, output_text: str, named: str) -> None:
    """Check the state after a command whose files were changed, and that the next command recovers."""
    run, _ = await context.plain()
    problem = incomplete(output, TASKS, REPEATS)
    if status == 0:
        hold(not problem, f"exit 0, and {problem}")
        manifest = output.with_name("rollouts_manifest.json")
        hold(manifest.exists(), "exit 0 without a manifest: every resume will be refused")
    else:
        hold(
            named in output_text or str(output.parent) in output_text,
            f"exit {status}, and {named} is not named: {output_text[-400:]}",
        )
    again = await context.begin(run, output)
    second = await again.ends()
    if second == 0:
        if why := incomplete(output, TASKS, REPEATS):
            raise Broken(f"the next command ends with 0, and {why}")
        return
    hold(second in (1, 2), f"the next command ends with {second}: {again.output[-400:]}")
    hold(
        "overwrite" in again.output or "line " in again.output or "+" in again.output,
        f"the message does not say how to continue: {again.output[-400:]}",
    )
    overwriting = await context.begin(run, output, "+overwrite=true")
    hold(await overwriting.exit_status() == 0, f"not even +overwrite=true works: {overwriting.output[-400:]}")
    whole(output, TASKS, REPEATS)


async def failures_while_collecting(change: Change, context: FaultContext, rng: random.Random) -> None:
    """Exit status 0 only if every failed attempt is recorded; the rollouts are complete in every case."""
    run, _ = await context.shared("failing", lambda: context.playing(OneOfTwenty(), model={"max_attempts": 1}))
    output = context.output()
    path = output.with_name("rollouts_failures.jsonl")
    command = await context.begin(run, output, "+max_attempts=20", "+max_failure_rate=1")
    while not (command.ended or (path.exists() and path.read_bytes().count(b"\n") >= 4)):
        await asyncio.sleep(0.01)
    injected(not command.ended, "the collection ended too early")
    change(path)
    status = await command.ends()
    if status == 0:
        whole(output, TASKS, REPEATS)
        reported = orjson.loads(output.with_name("rollouts_status.json").read_bytes())["failed_attempts"]
        try:
            recorded = len(read(path))
        except Broken:
            recorded = -1
        hold(recorded == reported, f"exit 0, and {recorded} of {reported} failed attempts are recorded")
    else:
        hold(path.name in command.output, f"exit {status}, and {path.name} is not named: {command.output[-400:]}")
    again = await context.begin(run, output, "+max_attempts=20", "+max_failure_rate=1")
    second = await again.ends()
    hold(second == 0 or "line " in again.output or "overwrite" in again.output, f"then {second}: {again.output[-400:]}")
    if second == 0:
        whole(output, TASKS, REPEATS)


class OneOfTwenty:
    def __init__(self) -> None:
        self._script = Script(latency_s=QUICK)
        self._error = http({"error": {"message": "no", "type": "server_error"}}, 500)

    def __call__(self, request: Request, transport: asyncio.Transport) -> None:
        if request.number % 20 == 7:
            later(transport, QUICK, self._error)
        else:
            self._script(request, transport)


def line_with(
    change: Callable[[dict[str, object]], bytes], context: FaultContext
) -> Callable[[Path, random.Random], None]:
    """Replace one line of the output by the result of `change`."""

    def changed(path: Path, rng: random.Random) -> None:
        lines = path.read_bytes().splitlines()
        index = rng.randrange(len(lines))
        lines[index] = change(orjson.loads(lines[index]))
        path.write_bytes(b"\n".join(lines) + b"\n")

    return changed


async def before_going_on(
    change: Callable[[dict[str, object]], bytes], context: FaultContext, rng: random.Random
) -> None:
    """Change a line of a finished output: the next command completes the output or names the line."""
    run, _ = await context.plain()
    output = await finished(context)
    line_with(change, context)(output, rng)
    command = await context.begin(run, output)
    status = await command.ends()
    if status == 0:
        whole(output, TASKS, REPEATS)
        return
    hold("line " in command.output, f"exit {status}, and no line is named: {command.output[-400:]}")


async def finished(context: FaultContext) -> Path:
    run, _ = await context.plain()
    source = context.folder / "finished"
    async with context.lock("finished"):
        if not (source / "rollouts.jsonl").exists():
            source.mkdir(exist_ok=True)
            await context.completes(run, source / "rollouts.jsonl")
    output = context.output()
    for path in source.iterdir():
        shutil.copy(path, output.parent / path.name)
    return output


def having(**values: object) -> Callable[[dict[str, object]], bytes]:
    return lambda row: orjson.dumps({**row, **values})


def raw(key: str, text: bytes) -> Callable[[dict[str, object]], bytes]:
    """Return a function that gives `key` a value that orjson cannot write."""
    return lambda row: orjson.dumps({**row, key: "@@"}).replace(b'"@@"', text)


STOPS = "stops within a second and names the file; the next command resumes or explains how"
LINES: list[tuple[str, Callable[[dict[str, object]], bytes]]] = [
    ("a foreign task index", having(_ng_task_index=9999)),
    ("a foreign repeat index", having(_ng_rollout_index=77)),
    ("a negative repeat", having(_ng_rollout_index=-1)),
    ("an index that is `true`", having(_ng_task_index=True)),
    ("an index that is a huge number", having(_ng_rollout_index=10**15)),
    ("reward NaN", raw("reward", b"NaN")),
    ("reward null", having(reward=None)),
    ("a reward that is a string", having(reward="1.0")),
    ("a reward that is `true`", having(reward=True)),
    ("an infinite reward", raw("reward", b"1e999")),
    ("nested 400 deep", raw("deep", b"[" * 400 + b"]" * 400)),
    ("nested 2,000 deep", raw("deep", b"[" * 2000 + b"]" * 2000)),
    ("not an object", lambda row: b"[1, 2]"),
    ("not JSON", lambda row: b"{half a li"),
    ("an empty line", lambda row: b""),
    ("an unexpected token_trail", having(token_trail="old")),
    ("unexpected timings and success", having(timings="x", success="yes", dataset_name=[1])),
]

FAULTS = [
    *(
        Fault(f"output {how} while collecting", 2, STOPS, partial(while_collecting, change, ""))
        for how, change in CHANGES.items()
    ),
    *(
        Fault(
            f"manifest {how} while collecting",
            *(2, STOPS, partial(while_collecting, CHANGES[how], "manifest.json")),
            slow=how != "removed",
        )
        for how in ("removed", "truncated", "replaced")
    ),
    *(
        Fault(
            f"failures file {how} while collecting",
            *(2, STOPS, partial(failures_while_collecting, CHANGES[how])),
            slow=how != "removed",
        )
        for how in ("renamed", "removed", "truncated", "appended to", "replaced")
    ),
    *(
        Fault(
            f"a line of the output is {how}",
            2,
            "completed, or one message that names the line",
            partial(before_going_on, change),
        )
        for how, change in LINES
    ),
]
