"""A vLLM that the run starts itself: killing any process leaves nothing behind, and the run continues."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from rollyard.services.runtime.stack import Stack
from tests.external.vllm.local_run import API, ENGINE_CORE, LONG_S, WORKER, local_config, mark_of, processes_of, sent
from tests.support.local_engines import marked_processes
from tests.support.processes import alive
from tests.support.stacks import EXAMPLES, collect, keys_of, read_rows


async def response_type(stack: Stack) -> str:
    """Type of the last item of a model response; waits for a restarting engine."""
    async with asyncio.timeout(LONG_S):
        while not stack.registry.directory().servers["policy_model"]:
            await asyncio.sleep(0.1)
    status, answer = await sent(stack, "POST", "/v1/responses", {"input": "Play.", "max_output_tokens": 100})
    assert status == 200, answer
    return str(answer["output"][-1]["type"])


async def test_a_started_engine_has_its_processes_under_a_reaper(local_stack: Stack) -> None:
    assert await response_type(local_stack)
    assert {ENGINE_CORE, WORKER, API, "reaper"} <= set(processes_of(mark_of(local_stack)))


@pytest.mark.parametrize("victim", ["reaper", "model server"])  # test_local_weights.py kills the other processes
async def test_kill_9_leaves_nothing_and_the_run_recovers(victim: str, local_stack: Stack) -> None:
    before = processes_of(mark_of(local_stack))
    (server,) = (instance for instance in local_stack.registry.instances() if instance.server_name == "policy_model")
    assert server.pid is not None
    os.kill({**before, "model server": server.pid}[victim], signal.SIGKILL)
    async with asyncio.timeout(LONG_S):
        while any(alive(pid) for pid in before.values()):
            await asyncio.sleep(0.05)
    assert await response_type(local_stack)


async def test_kill_9_of_the_engine_during_a_collection_loses_no_rollout(local_stack: Stack, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    collecting = asyncio.create_task(
        collect(local_stack, output, rows=EXAMPLES, repeats=12, identity={"killed": True}, seeded=False)
    )
    async with asyncio.timeout(LONG_S):
        while not output.exists() or len(read_rows(output)) < 5:
            await asyncio.sleep(0.05)
    before = processes_of(mark_of(local_stack))
    os.kill(before[ENGINE_CORE], signal.SIGKILL)
    state, progress = await collecting
    assert not any(alive(pid) for pid in before.values())
    rows = read_rows(output)
    tasks = len(EXAMPLES.read_text().splitlines())
    assert (state, progress.failed) == ("complete", 0)
    assert keys_of(rows) == [(task, repeat) for task in range(tasks) for repeat in range(12)]
    assert all(row["response"]["output"] and row["finish_reason"] != "failed" for row in rows)


async def test_kill_9_of_ng_run_and_the_reaper_leaves_no_process_of_vllm(tiny_model: Path, tmp_path: Path) -> None:
    mark = tmp_path.name
    (tmp_path / "run.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(local_config(tiny_model, mark))))
    words = [sys.executable, "-c", "from rollyard.services.cli.run import main; main()", "+config_paths=[run.yaml]"]
    log = tmp_path / "ng_run.log"
    with log.open("wb") as output:
        run = subprocess.Popen(
            [*words, "+head_port=0"], cwd=tmp_path, env=dict(os.environ), stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(LONG_S):
            while "servers ready!" not in log.read_text():
                assert run.poll() is None, log.read_text()
                await asyncio.sleep(0.1)
        assert "policy_model" in log.read_text()
        assert "loading weights" in log.read_text() or "starting the engine" in log.read_text(), log.read_text()
        reaper = processes_of(mark)["reaper"]
        os.kill(reaper, signal.SIGSTOP)  # it must not notice that the others die first
        os.kill(run.pid, signal.SIGKILL)  # its servers die with it
        os.kill(reaper, signal.SIGKILL)
        async with asyncio.timeout(LONG_S):
            while list(marked_processes(mark)):
                await asyncio.sleep(0.05)
    finally:
        run.kill()
        run.wait()
        for pid in marked_processes(mark):
            os.kill(pid, signal.SIGKILL)
