"""Weight updates of a vLLM that the run starts itself: the weights of an engine that restarts after kill -9."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

from rollyard.services.runtime.stack import Stack
from tests.external.vllm.local_run import API, ENGINE_CORE, LONG_S, WORKER, kill, mark_of, processes_of, sent


async def test_a_killed_engine_restarts_with_the_files_of_its_version_or_names_the_problem(
    local_stack: Stack, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    reused, kept = tmp_path / "latest", tmp_path / "kept"
    shutil.copytree(other_model, reused)
    shutil.copytree(other_model, kept)
    request = {"input": "Play.", "max_output_tokens": 50, "temperature": 0}
    status, answer_body = await sent(local_stack, "POST", "/weights/update", {"path": str(kept), "version": "kept"})
    assert status == 200, answer_body
    _, before = await sent(local_stack, "POST", "/v1/responses", request)
    await kill(local_stack, WORKER)
    _, after = await sent(local_stack, "POST", "/v1/responses", request)
    items = [response["output"][-1] for response in (before, after)]
    assert items[0]["generation_token_ids"] == items[1]["generation_token_ids"]
    assert items[1]["token_trace"]["sampling"]["policy_fingerprint"] == answer_body["fingerprint"]

    assert (await sent(local_stack, "POST", "/weights/update", {"path": str(reused), "version": "reused"}))[0] == 200
    shutil.copytree(tiny_model, reused, dirs_exist_ok=True)
    await kill(local_stack, API)
    status, problem = await sent(local_stack, "POST", "/v1/responses", request)
    assert (status, "version 'reused' cannot be loaded again" in problem["detail"]) == (503, True), problem
    assert (await sent(local_stack, "POST", "/weights/update", {"path": str(kept), "version": "next"}))[0] == 200
    assert (await sent(local_stack, "POST", "/v1/responses", request))[0] == 200


async def test_kill_9_during_an_update_leaves_a_single_recorded_version(local_stack: Stack, other_model: Path) -> None:
    core = processes_of(mark_of(local_stack))[ENGINE_CORE]
    os.kill(core, signal.SIGSTOP)
    body = {"path": str(other_model), "version": "a"}
    updating = asyncio.create_task(sent(local_stack, "POST", "/weights/update", body))
    async with asyncio.timeout(LONG_S):
        while not (await sent(local_stack, "GET", "/weights"))[1]["waits_for"]:
            assert not updating.done(), updating.result()
            await asyncio.sleep(0.05)
    os.kill(core, signal.SIGKILL)
    assert (await updating)[0] in (502, 503)
    async with asyncio.timeout(LONG_S):
        while (answer := await sent(local_stack, "POST", "/weights/update", body))[0] != 200:
            await asyncio.sleep(0.2)
    now = (await sent(local_stack, "GET", "/weights"))[1]
    assert (now["version"], now["fingerprint"], now["difference"]) == ("a", answer[1]["fingerprint"], None)
    assert (await sent(local_stack, "POST", "/v1/responses", {"input": "Play.", "max_output_tokens": 50}))[0] == 200
