"""Weight updates on a real vLLM that the run starts itself: what an engine comes back with after kill -9."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

from rollyard.services.runtime.stack import Stack
from tests.external.vllm.local_run import API, ENGINE_CORE, LONG_S, WORKER, kill, mark_of, processes_of, sent


async def test_an_engine_that_was_killed_comes_back_with_the_files_of_its_version_or_refuses_by_name(
    local_stack: Stack, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    reused, kept = tmp_path / "latest", tmp_path / "kept"
    shutil.copytree(other_model, reused)
    shutil.copytree(other_model, kept)
    asking = {"input": "Play.", "max_output_tokens": 50, "temperature": 0}
    status, said = await sent(local_stack, "POST", "/weights/update", {"path": str(kept), "version": "kept"})
    assert status == 200, said
    _, before = await sent(local_stack, "POST", "/v1/responses", asking)
    await kill(local_stack, WORKER)
    _, after = await sent(local_stack, "POST", "/v1/responses", asking)
    of = [one["output"][-1] for one in (before, after)]
    assert of[0]["generation_token_ids"] == of[1]["generation_token_ids"]
    assert of[1]["token_trace"]["sampling"]["policy_fingerprint"] == said["fingerprint"]

    assert (await sent(local_stack, "POST", "/weights/update", {"path": str(reused), "version": "reused"}))[0] == 200
    shutil.copytree(tiny_model, reused, dirs_exist_ok=True)
    await kill(local_stack, API)
    status, why = await sent(local_stack, "POST", "/v1/responses", asking)
    assert (status, "version 'reused' cannot be loaded again" in why["detail"]) == (503, True), why
    assert (await sent(local_stack, "POST", "/weights/update", {"path": str(kept), "version": "next"}))[0] == 200
    assert (await sent(local_stack, "POST", "/v1/responses", asking))[0] == 200


async def test_kill_9_in_the_middle_of_an_update_leaves_one_version_on_record(
    local_stack: Stack, other_model: Path
) -> None:
    core = processes_of(mark_of(local_stack))[ENGINE_CORE]
    os.kill(core, signal.SIGSTOP)
    body = {"path": str(other_model), "version": "a"}
    updating = asyncio.create_task(sent(local_stack, "POST", "/weights/update", body))
    await asyncio.sleep(1)
    os.kill(core, signal.SIGKILL)
    assert (await updating)[0] in (502, 503)
    async with asyncio.timeout(LONG_S):
        while (answer := await sent(local_stack, "POST", "/weights/update", body))[0] != 200:
            await asyncio.sleep(1)
    now = (await sent(local_stack, "GET", "/weights"))[1]
    assert (now["version"], now["fingerprint"], now["difference"]) == ("a", answer[1]["fingerprint"], None)
    assert (await sent(local_stack, "POST", "/v1/responses", {"input": "Play.", "max_output_tokens": 50}))[0] == 200
