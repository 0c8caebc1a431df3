"""A vLLM that the run starts itself, with a tied model; the last test kills it.

tests/faults/crash kills every process of a fake vLLM, and its owner.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rollyard.services.runtime.stack import Stack
from tests.external.vllm.conftest import tied
from tests.external.vllm.engine import Engine, start_s
from tests.external.vllm.local_run import API, ENGINE_CORE, WORKER, mark_of, processes_of, sent
from tests.external.vllm.reference import Reference
from tests.support.processes import alive
from tests.support.stacks import EXAMPLES, collect, keys_of, read_rows
from tests.support.waiting import until

REPEATS = 12
PROMPT = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def other_tied_model(other_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tied(other_model, tmp_path_factory.mktemp("other_tied") / "model")


async def test_the_processes_of_an_engine_are_below_a_reaper_and_its_log_contains_no_error(local_stack: Stack) -> None:
    status, answer = await sent(local_stack, "POST", "/v1/responses", {"input": "Play.", "max_output_tokens": 100})
    assert status == 200, answer
    assert {ENGINE_CORE, WORKER, API, "reaper"} <= set(processes_of(mark_of(local_stack)))
    lines = (local_stack.folder.logs / "policy_model-engine-0.log").read_text().splitlines()
    # No errors of the engine: a limit on open files that cannot be raised, and random text that looks like a call.
    expected = ("ulimit", "_tool_parser.py:")
    assert lines and not [line for line in lines if "error" in line.lower() and not any(map(line.count, expected))]


async def test_new_weights_for_a_tied_model_are_rejected_and_the_engine_is_unchanged(
    local_stack: Stack, raw_engine: Engine, raw_reference: Reference, other_tied_model: Path
) -> None:
    status, problem = await sent(local_stack, "POST", "/weights/update", {"path": str(other_tied_model)})
    assert (status, "output head" in problem["detail"]) == (400, True)
    output, logprobs = raw_engine.sampled(PROMPT)
    assert raw_reference.logprobs(PROMPT, output) == pytest.approx(logprobs, abs=1e-4)


def test_vllm_keeps_the_old_head_of_a_tied_model_after_a_reload(
    raw_engine: Engine, tied_model: Path, other_tied_model: Path
) -> None:
    """The reason for the rejection. If this fails, vLLM has fixed it, and the rejection can be removed."""
    raw_engine.reload(other_tied_model)
    output, logprobs = raw_engine.sampled(PROMPT)
    raw_engine.reload(tied_model)
    assert Reference(other_tied_model).logprobs(PROMPT, output) != pytest.approx(logprobs, abs=1e-2)


async def test_kill_9_of_the_engine_during_a_collection_loses_no_rollout(local_stack: Stack, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    collecting = asyncio.create_task(
        collect(local_stack, output, rows=EXAMPLES, repeats=REPEATS, identity={"killed": True}, seeded=False)
    )
    await until(lambda: output.exists() and len(read_rows(output)) >= 5)
    assert not collecting.done()
    before = processes_of(mark_of(local_stack))
    os.kill(before[ENGINE_CORE], signal.SIGKILL)
    async with asyncio.timeout(start_s()):
        state, progress = await collecting
    assert not any(alive(pid) for pid in before.values())
    rows = read_rows(output)
    tasks = len(EXAMPLES.read_text().splitlines())
    assert (state, progress.failed) == ("complete", 0)
    assert keys_of(rows) == [(task, repeat) for task in range(tasks) for repeat in range(REPEATS)]
    assert all(row["response"]["output"] and row["finish_reason"] != "failed" for row in rows)
