"""Weight updates on a real vLLM that the run starts itself: what an engine comes back with after kill -9."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from rollyard.services.runtime.stack import Stack
from tests.external.vllm.test_local_engine import ENGINE_CORE, LONG_S, a_run, mark_of, processes_of
from tests.support.stacks import configured, processes

TOKEN = "the run's token"


async def sent(stack: Stack, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and body of a call to the model server."""
    (url,) = stack.registry.directory().servers["policy_model"]
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    content = b"" if body is None else orjson.dumps(body)
    answer = await stack.client.transport.send(method, url + path, content, headers, LONG_S)
    return answer.status, orjson.loads(answer.body)


async def killed(stack: Stack, mark: str) -> None:
    """The engine's core ends; wait until a new engine is there."""
    before = processes_of(mark)
    os.kill(before[ENGINE_CORE], signal.SIGKILL)
    async with asyncio.timeout(LONG_S):
        while not (await sent(stack, "GET", "/weights"))[1]["engines"] or processes_of(mark).items() & before.items():
            await asyncio.sleep(0.2)


@pytest_asyncio.fixture(scope="module")
async def stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One run with the trainer's endpoints. Its folder's name is the mark of its engine."""
    folder = tmp_path_factory.mktemp("weights")
    chosen = a_run(tiny_model, folder.name, trainer_endpoints=True)
    async with processes(configured(config=chosen, tmp_path=folder), folder, token=TOKEN) as stack:
        yield stack


async def test_an_engine_that_was_killed_comes_back_with_the_files_of_its_version_or_refuses_by_name(
    stack: Stack, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    mark = mark_of(stack)
    reused, kept = tmp_path / "latest", tmp_path / "kept"
    shutil.copytree(other_model, reused)
    shutil.copytree(other_model, kept)
    asking = {"input": "Play.", "max_output_tokens": 50, "temperature": 0}
    status, said = await sent(stack, "POST", "/weights/update", {"path": str(kept), "version": "kept"})
    assert status == 200, said
    _, before = await sent(stack, "POST", "/v1/responses", asking)
    await killed(stack, mark)
    _, after = await sent(stack, "POST", "/v1/responses", asking)
    of = [one["output"][-1] for one in (before, after)]
    assert of[0]["generation_token_ids"] == of[1]["generation_token_ids"]
    assert of[1]["token_trace"]["sampling"]["policy_fingerprint"] == said["fingerprint"]

    assert (await sent(stack, "POST", "/weights/update", {"path": str(reused), "version": "reused"}))[0] == 200
    shutil.copytree(tiny_model, reused, dirs_exist_ok=True)
    await killed(stack, mark)
    status, why = await sent(stack, "POST", "/v1/responses", asking)
    assert (status, "version 'reused' cannot be loaded again" in why["detail"]) == (503, True), why
    assert (await sent(stack, "POST", "/weights/update", {"path": str(kept), "version": "next"}))[0] == 200
    assert (await sent(stack, "POST", "/v1/responses", asking))[0] == 200


async def test_kill_9_in_the_middle_of_an_update_leaves_one_version_on_record(stack: Stack, other_model: Path) -> None:
    core = processes_of(mark_of(stack))[ENGINE_CORE]
    os.kill(core, signal.SIGSTOP)
    body = {"path": str(other_model), "version": "a"}
    updating = asyncio.create_task(sent(stack, "POST", "/weights/update", body))
    await asyncio.sleep(1)
    os.kill(core, signal.SIGKILL)
    assert (await updating)[0] in (502, 503)
    async with asyncio.timeout(LONG_S):
        while (answer := await sent(stack, "POST", "/weights/update", body))[0] != 200:
            await asyncio.sleep(1)
    now = (await sent(stack, "GET", "/weights"))[1]
    assert (now["version"], now["fingerprint"], now["difference"]) == ("a", answer[1]["fingerprint"], None)
    assert (await sent(stack, "POST", "/v1/responses", {"input": "Play.", "max_output_tokens": 50}))[0] == 200
