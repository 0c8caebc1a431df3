"""A real vLLM that the run starts itself: whatever is killed, nothing of it is left, and the run goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from omegaconf import OmegaConf

from rollyard.services.io.search_path import INSTALLED
from rollyard.services.runtime.stack import Stack
from rollyard.services.types import Json
from tests.external.vllm.calls import CALL
from tests.external.vllm.engine import ENVIRONMENT, LONGEST
from tests.support.local_engines import MARK, alive, bearers, parent_of
from tests.support.stacks import EXAMPLES, collect, configured, keys_of, processes, read_rows

MODEL = "responses_api_models/local_vllm_model/configs/local_vllm_model.yaml"
WORLD = "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
LONG_S = 600.0
"""A start takes half a minute alone, several among busy neighbours."""
ENGINE_CORE, WORKER, API = "VLLM::EngineCor", "VLLM::Worker", "vllm"


def a_run(model: Path, mark: str, **more: Any) -> Json:
    """Sokoban on a tiny random model, whose answers are made valid tool calls."""
    variables = {**ENVIRONMENT, MARK: mark}
    settings: Json = {
        "model": str(model),
        "vllm_command": [str(Path(sys.executable).with_name("vllm"))],
        "served_model_name": "tiny",
        "dtype": "float32",
        "max_model_len": LONGEST,
        "environment": variables,
        "extra_flags": {"enforce_eager": True, "kv_cache_memory_bytes": 134217728, "max_num_seqs": 32},
        "strict_tools": False,  # a strict tool's own grammar would take the regex's place
        "extra_body": {"structured_outputs": {"regex": CALL}},
        "return_token_id_information": True,
        "start_timeout_s": LONG_S,
        **more,
    }
    tree = OmegaConf.merge(
        *(OmegaConf.load(INSTALLED / path) for path in (MODEL, WORLD)),
        {"policy_model_name": "tiny", "policy_model": {"responses_api_models": {"local_vllm_model": settings}}},
    )
    plain: Any = OmegaConf.to_container(tree, resolve=True)
    del plain["policy_model_name"]
    return dict(plain)


def processes_of(mark: str) -> dict[str, int]:
    """The engine's living processes by name; `keeper` is the parent of its API server."""
    found = {Path(f"/proc/{pid}/comm").read_text().strip(): pid for pid in bearers(mark)}
    if API in found:
        found["keeper"] = parent_of(found[API])
    return found


@pytest_asyncio.fixture(scope="module")
async def stack(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """One run, its servers in processes of their own. Its folder's name is the mark of its engine."""
    folder = tmp_path_factory.mktemp("local")
    async with processes(configured(config=a_run(tiny_model, folder.name), tmp_path=folder), folder) as stack:
        yield stack
    assert list(bearers(folder.name)) == []


def mark_of(stack: Stack) -> str:
    return stack.folder.path.parents[3].name


async def answered(stack: Stack) -> str:
    """A model's answer through the run; it waits while the engine comes up again."""
    async with asyncio.timeout(LONG_S):
        while not (urls := stack.registry.directory().servers["policy_model"]):
            await asyncio.sleep(0.1)
    body = orjson.dumps({"input": "Play.", "max_output_tokens": 100})
    answer = await stack.client.transport.send(
        "POST", f"{urls[0]}/v1/responses", body, {"content-type": "application/json"}, LONG_S
    )
    assert answer.status == 200, answer.body
    return str(orjson.loads(answer.body)["output"][-1]["type"])


async def test_an_engine_of_our_own_has_its_four_processes_under_a_reaper(stack: Stack) -> None:
    assert await answered(stack)
    assert {ENGINE_CORE, WORKER, API, "keeper"} <= set(processes_of(mark_of(stack)))


@pytest.mark.parametrize("victim", [WORKER, API, "keeper", "model server"])
async def test_kill_9_leaves_nothing_and_the_run_answers_again(victim: str, stack: Stack) -> None:
    before = processes_of(mark_of(stack))
    (server,) = (shown for shown in stack.registry.instances() if shown.server_name == "policy_model")
    assert server.pid is not None
    os.kill({**before, "model server": server.pid}[victim], signal.SIGKILL)
    async with asyncio.timeout(LONG_S):
        while any(alive(pid) for pid in before.values()):
            await asyncio.sleep(0.05)
    assert await answered(stack)


async def test_kill_9_of_the_engine_amid_a_collection_costs_no_rollout(stack: Stack, tmp_path: Path) -> None:
    output = tmp_path / "rollouts.jsonl"
    collecting = asyncio.create_task(collect(stack, output, rows=EXAMPLES, repeats=12, identity={"killed": True}))
    async with asyncio.timeout(LONG_S):
        while not output.exists() or len(read_rows(output)) < 5:
            await asyncio.sleep(0.05)
    before = processes_of(mark_of(stack))
    os.kill(before[ENGINE_CORE], signal.SIGKILL)
    state, progress = await collecting
    assert not any(alive(pid) for pid in before.values())
    rows = read_rows(output)
    tasks = len(EXAMPLES.read_text().splitlines())
    assert (state, progress.failed) == ("complete", 0)
    assert keys_of(rows) == [(task, repeat) for task in range(tasks) for repeat in range(12)]
    assert all(row["response"]["output"] and row["finish_reason"] != "failed" for row in rows)


async def test_kill_9_of_everything_of_ours_at_once_leaves_nothing_of_vllm(tiny_model: Path, tmp_path: Path) -> None:
    mark = tmp_path.name
    (tmp_path / "run.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(a_run(tiny_model, mark))))
    words = [sys.executable, "-c", "from rollyard.services.cli.run import main; main()", "+config_paths=[run.yaml]"]
    said = tmp_path / "said.txt"
    with said.open("wb") as output:
        run = subprocess.Popen(
            [*words, "+head_port=0"], cwd=tmp_path, env=dict(os.environ), stdout=output, stderr=output
        )
    try:
        async with asyncio.timeout(LONG_S):
            while "servers ready!" not in said.read_text():
                assert run.poll() is None, said.read_text()
                await asyncio.sleep(0.1)
        assert "policy_model" in said.read_text()
        assert "loading weights" in said.read_text() or "starting the engine" in said.read_text(), said.read_text()
        keeper = processes_of(mark)["keeper"]
        os.kill(keeper, signal.SIGSTOP)  # it must not notice that the others die first
        os.kill(run.pid, signal.SIGKILL)  # its servers die with it
        os.kill(keeper, signal.SIGKILL)
        async with asyncio.timeout(LONG_S):
            while list(bearers(mark)):
                await asyncio.sleep(0.05)
    finally:
        run.kill()
        run.wait()
        for pid in bearers(mark):
            os.kill(pid, signal.SIGKILL)
