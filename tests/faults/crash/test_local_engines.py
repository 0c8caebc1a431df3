"""local_vllm_model with a fake vLLM: startup messages, and a run that survives the death of any process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.errors import OperatorError, RunError
from rollyard.services.config.run_config import RunConfig
from rollyard.services.runtime.stack import Stack
from tests.support.fixtures import unused_url
from tests.support.local_engines import FAKE, MARK, wait_until_gone
from tests.support.processes import alive
from tests.support.stacks import load_config, processes
from tests.support.waiting import deadline_s, until


def run_config(folder: Path, environment: dict[str, str] | None = None, **more: Any) -> RunConfig:
    """One local_vllm_model with the fake vLLM, whose processes carry the folder's name as mark."""
    (folder / "notes").mkdir()
    (folder / "model").mkdir()
    variables = {MARK: folder.name, "FAKE_NOTES": str(folder / "notes"), **(environment or {})}
    own = {"model": str(folder / "model"), "vllm_command": [sys.executable, str(FAKE)], "environment": variables}
    tree = {"policy_model": {"responses_api_models": {"local_vllm_model": {**own, **more}}}}
    return load_config(config=tree, tmp_path=folder)


async def engine_pid(stack: Stack) -> int:
    """Process id of the engine that responded."""
    (url,) = stack.registry.directory().servers["policy_model"]
    body = orjson.dumps({"messages": [{"role": "user", "content": "who are you?"}]})
    answer = await stack.client.transport.send(
        "POST", f"{url}/v1/chat/completions", body, {"content-type": "application/json"}, deadline_s()
    )
    assert answer.status == 200, answer.body
    return int(orjson.loads(answer.body)["choices"][0]["message"]["content"])


async def test_a_run_responds_through_its_engines_and_leaves_none(tmp_path: Path) -> None:
    async with processes(run_config(tmp_path, engine_replicas=2, served_model_name="tiny"), tmp_path) as stack:
        assert alive(await engine_pid(stack))
        logs = sorted(path.name for path in stack.folder.logs.glob("*.log"))
        assert logs == ["policy_model-engine-0.log", "policy_model-engine-1.log", "policy_model.log"]
    await wait_until_gone(tmp_path.name)


async def test_kill_9_of_the_model_server_ends_its_engine_and_both_restart(tmp_path: Path) -> None:
    async with processes(run_config(tmp_path), tmp_path) as stack:
        first = await engine_pid(stack)
        (server,) = stack.registry.instances()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: not alive(first))
        await until(lambda: stack.registry.directory().servers["policy_model"] not in ([], [server.url]))
        assert await engine_pid(stack) != first
    await wait_until_gone(tmp_path.name)


@pytest.mark.parametrize("setting", ["ray_address", "model"])
async def test_what_vllm_would_not_find_is_named_before_it_is_started(setting: str, tmp_path: Path) -> None:
    value = unused_url().removeprefix("http://") if setting == "ray_address" else "/nowhere/tiny"
    more: dict[str, Any] = {setting: value}
    with pytest.raises((RunError, OperatorError), match=value):
        async with processes(run_config(tmp_path, **more), tmp_path):
            pass
    assert list((tmp_path / "notes").iterdir()) == []
