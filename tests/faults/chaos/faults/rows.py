"""Rows and agent responses with unexpected optional values: stored and shown, or one failed attempt each."""

from __future__ import annotations

import random
import signal
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.rewards import mask_of
from rollyard.records.rows import ID_KEYS
from tests.faults.chaos.fault import Fault
from tests.faults.chaos.fault_context import FaultContext
from tests.faults.chaos.invariants import hold, injected, no_crash, read
from tests.faults.chaos.workspace import Run, get

ANSWER_KEYS = (
    *(
        "success",
        "truncated",
        "finish_reason",
        "timings",
        "token_trail",
        "dataset_name",
        "mask_sample",
        "usage",
        "level",
    ),
    *("_ng_task_index", "_ng_rollout_index", "_ng_attempt_index", "agent_ref", "responses_create_params", "response"),
    *("moves", "optimal_moves", "boxes_on_target", "steps", "id", "error", "metadata"),
)
"""Keys of an agent's response to /run."""
NESTED = ("output", "usage", "status", "incomplete_details", "model", "id")
"""Keys of the `response` in it."""
ROW_KEYS = (
    "dataset_name",
    "token_trail",
    "timings",
    "success",
    "reward",
    "response",
    "finish_reason",
    "id",
    "difficulty",
    "level_id",
)
"""Keys of a dataset row."""
ODD: tuple[Any, ...] = (
    *(
        "old",
        "",
        3,
        -1,
        1.5,
        True,
        None,
        [],
        {},
        [[]],
        {"a": None},
        ["x", 1],
        {"turns": "many", "breaks": None},
        10**18,
    ),
    *("\u2028\x85", "\x1b[31m", "<script>alert(1)</script>", {"": ""}, [None], {"input_tokens": "x"}),
)
NO_IDS = ("", "\u2028\x85")
OUTPUTS: tuple[Any, ...] = (
    "text",
    [1],
    [None],
    [{"type": None}],
    [{"type": "message"}],
    [{"type": "message", "content": [1]}],
    [{}],
    {"0": {}},
)
OUTPUTS += ([{"type": "function_call"}], [{"type": "message", "content": [{"type": "output_text", "text": 5}]}])


def answers(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows that make the agent return unexpected values."""
    made: list[dict[str, Any]] = []
    for number in range(count):
        key = rng.choice(ANSWER_KEYS)
        answer: dict[str, Any] = {key: rng.choice(ODD)}
        if number % 3 == 0:
            answer = {"response": {rng.choice(NESTED): rng.choice(ODD), "output": rng.choice(OUTPUTS)}}
        elif number % 3 == 1:
            answer |= {other: rng.choice(ODD) for other in rng.sample(ANSWER_KEYS, 3)}
        made.append({"answer": answer})
    return [
        *made,
        {"answer": {"token_trail": "old"}},
        {"answer": {"token_trail": {"turns": 1}}},
        {"answer": {"timings": {"total_s": "x"}}},
    ]


def keys(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows with unexpected values of their own."""
    made = [{rng.choice(ROW_KEYS): rng.choice(ODD) for _ in range(3)} for _ in range(count)]
    # An id that is empty or spans lines is refused before anything is played (test_rows.py).
    made = [{key: value for key, value in row.items() if key not in ID_KEYS or value not in NO_IDS} for row in made]
    return [*made, {"reward": "x", "_ng_task_index": "a", "_ng_rollout_index": -4, "token_trail": "old"}]


async def through_everything(kind: str, context: FaultContext, rng: random.Random) -> None:
    """Collect, resume, profile and view."""
    run = await odd_run(context)
    output = context.output()
    rows = output.with_name("input.jsonl")
    odd = (answers if kind == "answers" else keys)(rng, 60)
    params = {"responses_create_params": {"input": "play"}}
    rows.write_bytes(b"".join(orjson.dumps({**row, **params}) + b"\n" for row in odd))
    first = await context.collect(
        run, output, rows, "+num_repeats=2", "+max_attempts=1", "+max_failure_rate=1", agent="odd"
    )
    status = await first.ends()
    measured = read(output)
    injected(measured, f"nothing was measured: {first.output[-500:]}")
    keys_of = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in measured]
    hold(len(set(keys_of)) == len(keys_of), "a rollout is in the file more than once")
    failed = {
        (row["_ng_task_index"], row["_ng_rollout_index"]) for row in read(output.with_name("rollouts_failures.jsonl"))
    }
    expected = {(task, repeat) for task in range(len(odd)) for repeat in range(2)}
    hold(set(keys_of) | failed == expected, f"{len(expected - set(keys_of) - failed)} neither measured nor failed")
    masked = sum(bool(mask_of(row)) for row in measured)
    hold(
        (status == 0) == (len(set(keys_of)) - masked == len(expected)),
        f"exit {status} with {len(set(keys_of))} of {len(expected)}, {masked} of them masked",
    )
    again = await context.collect(
        run, output, rows, "+num_repeats=2", "+max_attempts=1", "+max_failure_rate=1", agent="odd"
    )
    hold(await again.exit_status() == status, f"the resume ends differently: {again.output[-400:]}")
    no_crash(again.output)
    profile = await context.start("ng_reward_profile", f"+jsonl_fpath={output}")
    ended = await profile.ends()
    hold(ended == 0, f"ng_reward_profile ends with {ended}: {profile.output[-500:]}")
    await viewed(context, output)


async def viewed(context: FaultContext, output: Path) -> None:
    """Request everything that the viewer's page can request about the file."""
    viewer = await context.start("ng_viewer", f"+jsonl_fpath={output}", "+port=0")
    try:
        url = await context.says_url(viewer)
        paths = ["/", "/api/overview", "/api/runs/0/profile", "/api/runs/0/rollouts?limit=200"]
        for row in read(output):
            paths.append(f"/api/runs/0/rollouts/{row['_ng_task_index']}/{row['_ng_rollout_index']}")
            paths.append(f"{paths[-1]}/raw")
        for path in paths:
            status, body = await get(f"{url}{path}")
            hold(status == 200, f"the viewer answers {path} with {status}: {body[:200]!r}")
    finally:
        viewer.signal(signal.SIGINT)
        await viewer.ends()


async def odd_run(context: FaultContext) -> Run:
    """A run with the agent that returns what the row contains."""
    return await context.shared("odd", lambda: context.run({"odd": {"agents": {"odd_agent": {}}}}))


FAULTS = [
    Fault(
        "agent responses with unexpected optional values",
        2,
        "stored and shown, or one failed attempt each",
        partial(through_everything, "answers"),
    ),
    Fault(
        "rows with unexpected optional values",
        2,
        "stored and shown, or one failed attempt each",
        partial(through_everything, "keys"),
    ),
]
