"""docs/nemo-gym.md with a stack that the real NeMo Gym started, also when processes are killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.records.types import Json
from tests.external.nemo_gym.gym_stack import VENVS, Endpoint, GymStack, gym_stack
from tests.support.commands import BIN, command, command_environ
from tests.support.doc_pages import commands, page, sections
from tests.support.processes import free_port
from tests.support.scripted_engine import listening
from tests.support.stacks import keys_of, read_rows
from tests.support.waiting import deadline_s

AGENT = "mcqa_simple_agent"
REPEATS = 3


@pytest.fixture(scope="module", params=VENVS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("collect")
    (made / "gym").symlink_to(VENVS[request.param])
    return made


@pytest.fixture(scope="module")
async def stack(folder: Path) -> AsyncIterator[tuple[GymStack, Endpoint]]:
    """One stack for this module, because a start takes a minute. The last test kills its agent."""
    endpoint = Endpoint()
    async with listening(endpoint.app) as url, gym_stack(folder, venv(folder), url, free_port()) as running:
        yield running, endpoint


def venv(folder: Path) -> Path:
    return (folder / "gym").readlink()


def examples(folder: Path) -> Path:
    [path] = (venv(folder) / "lib").glob("python3*/site-packages/resources_servers/mcqa/data/example.jsonl")
    return path


def documented(program: str, stack: GymStack) -> list[str]:
    text = sections(page("nemo-gym.md"))["Collect from a NeMo Gym stack"]
    [words] = [words for words in commands(text) if words[0] == program]
    host, _, port = stack.head.partition(":")
    local = [word.replace("gym/lib/python3.12", f"gym/lib/{examples(stack.folder).parents[4].name}") for word in words]
    return [*local, f"+head_server.host={host}", f"+head_server.port={port}"]


def arguments(stack: GymStack) -> list[str]:
    return [*documented("ng_collect_rollouts", stack), "+num_samples_in_parallel=4"]


def rows(folder: Path) -> list[Json]:
    return read_rows(folder / "results" / "mcqa.jsonl")


def expected(folder: Path) -> list[tuple[int, int]]:
    tasks = len(examples(folder).read_bytes().splitlines())
    return [(task, repeat) for task in range(tasks) for repeat in range(REPEATS)]


async def test_the_status_lists_the_servers_of_the_stack(stack: tuple[GymStack, Endpoint], folder: Path) -> None:
    running, _ = stack
    shown = await command(*documented("ng_status", running), "+json=true", cwd=folder)
    assert shown.status == 0, shown.err
    servers = {one["server_name"]: (one["server_type"], one["ready"]) for one in orjson.loads(shown.out)}
    assert servers.pop("mcqa_environment_server", ready := ("environment_servers", True)) == ready  # 0.7 adds it
    assert servers == {
        AGENT: ("agents", True),
        "mcqa": ("resources_servers", True),
        "policy_model": ("responses_api_models", True),
    }


async def test_every_rollout_is_there_once_after_the_collector_and_the_agent_were_killed(
    stack: tuple[GymStack, Endpoint], folder: Path
) -> None:
    running, endpoint = stack
    endpoint.hold = asyncio.Event()
    collector = await _started(running, folder)
    async with asyncio.timeout(3 * deadline_s()):
        while endpoint.requests < 4:
            assert collector.returncode is None
            await asyncio.sleep(0.05)
    endpoint.hold.set()
    async with asyncio.timeout(3 * deadline_s()):
        while b"\n" not in (folder / "results" / "mcqa.jsonl").read_bytes():
            await asyncio.sleep(0.01)
    collector.send_signal(signal.SIGKILL)
    await collector.wait()

    endpoint.hold = asyncio.Event()
    collector, before = await _started(running, folder), endpoint.requests
    async with asyncio.timeout(3 * deadline_s()):
        while endpoint.requests == before and collector.returncode is None:
            await asyncio.sleep(0.05)
    await running.kill(AGENT)
    endpoint.hold.set()
    output, _ = await collector.communicate()
    assert collector.returncode in (0, 1), output.decode()
    counted = keys_of(rows(folder))
    assert len(counted) == len(set(counted))
    assert all("reward" not in failure for failure in read_rows(folder / "results" / "mcqa_failures.jsonl"))

    async with listening(endpoint.app) as url, gym_stack(folder, venv(folder), url, free_port()) as restarted:
        finished = await command(*arguments(restarted), cwd=folder)
        assert finished.status == 0, finished.out + finished.err
    found = rows(folder)
    assert keys_of(found) == expected(folder)
    assert all(row["agent_ref"]["name"] == AGENT and row["reward"] in (0.0, 1.0) for row in found)
    assert all({"response", "expected_answer", "_ng_task_key"} <= row.keys() for row in found)


async def _started(running: GymStack, folder: Path) -> asyncio.subprocess.Process:
    name, *rest = arguments(running)
    streams: Any = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
    return await asyncio.create_subprocess_exec(str(BIN / name), *rest, cwd=folder, env=command_environ(), **streams)
