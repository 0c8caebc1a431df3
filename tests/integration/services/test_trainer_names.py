"""The names that trainers import from NeMo Gym, over real server processes and engines that return tokens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from rollyard.errors import OperatorError, RunError
from rollyard.interop.nemo_gym import (
    HEAD_SERVER_KEY_NAME,
    BaseServerConfig,
    GlobalConfigDictParserConfig,
    RolloutCollectionHelper,
    RunHelper,
    path_entry,
)
from rollyard.interop.nemo_gym.__main__ import main as print_path_entry
from rollyard.interop.nemo_gym.run_helper import get_global_config_dict
from rollyard.records.types import Json
from rollyard.services.runtime.run_dir import running_heads
from tests.support.fixtures import make_folder
from tests.support.nemo_rl_rules import loss_multiplier, message_log, verl_message_log
from tests.support.processes import alive, free_port
from tests.support.scripted_engine import listening
from tests.support.token_clients import CALL_TURN, TEXT_TURN, TOOL
from tests.support.token_engine import TokenEngine
from tests.support.waiting import deadline_s

WALL = """
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve, tool
from rollyard.resources_servers.rubric import Rubric

class Wall(Environment[EnvironmentSettings]):
    RUBRIC = Rubric(solved=(1.0, lambda wall, response: 1.0), tidy=(0.5, lambda wall, response: 0.5))

    @tool
    async def push(self, actions: list[str]) -> str:
        return "## the wall"

    async def verify(self, response: Verification) -> Verdict:
        return await self.RUBRIC.verdict(self, response)

server = serve(Wall)
"""
ENV_YAML = {"policy_base_url": "http://127.0.0.1:1/v1", "policy_model_name": "of-env-yaml"}
"""What the trainer passes must override it."""


class Turns(TokenEngine):
    """An engine that answers a conversation without a tool output with a call, and any other with text."""

    def __init__(self) -> None:
        super().__init__([CALL_TURN])

    def _turn(self, prompt: list[int]) -> tuple[list[int], str]:
        called = prompt[-len(CALL_TURN) :] != CALL_TURN and any(
            prompt[start : start + len(CALL_TURN)] == CALL_TURN for start in range(len(prompt))
        )
        self.turns += 1
        return (TEXT_TURN if called else CALL_TURN), "stop"


class Trainer:
    """Uses the names as NeMo RL's actor does."""

    def __init__(self, folder: Path, urls: list[str], *, only_model: bool = False, **more: Any) -> None:
        """`only_model`: without the environment and its agent, which take longest to start."""
        name = make_folder(folder, app=WALL)
        player = {"resources_server": {"name": "wall"}, "model_server": {"name": "policy_model"}}
        servers = {
            "wall": {"resources_servers": {name: {"entrypoint": "app.py"}}},
            "player": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **player}}},
        }
        config = {"config_paths": ["responses_api_models/vllm_model/configs/vllm_model_for_training.yaml"]}
        (folder / "wall.yaml").write_text(OmegaConf.to_yaml({**config, **({} if only_model else servers)}))
        (folder / "nemo_gym_env.yaml").write_text(OmegaConf.to_yaml(ENV_YAML))
        self.port = free_port()
        content: dict[Any, Any] = {
            "config_paths": [str(folder / "wall.yaml")],
            "policy_model_name": "tiny",
            "policy_api_key": "dummy_key",
            "policy_base_url": urls,
            "default_host": "10.9.8.7",
            "port_range_low": 5000,
            "port_range_high": 5999,
            "global_aiohttp_connector_limit_per_host": 16_384,
            "global_aiohttp_connector_limit": 65_536,
            "ray_head_node_address": "10.9.8.7:6379",
            "uv_venv_dir": "/opt/venvs",
            "skip_venv_if_present": True,
            HEAD_SERVER_KEY_NAME: {"host": "0.0.0.0", "port": self.port},
            "policy_model": {"responses_api_models": {"vllm_model": {"text_tool_parser": "hermes"}}},
            **more,
        }
        self.config = DictConfig(content)
        self.dotenv = folder / "nemo_gym_env.yaml"
        self.helper = RunHelper()

    async def start(self) -> None:
        parsed = GlobalConfigDictParserConfig(
            dotenv_path=self.dotenv, initial_global_config_dict=self.config, skip_load_from_cli=True
        )
        await asyncio.to_thread(self.helper.start, global_config_dict_parser_config=parsed)

    async def rollouts(self, rows: list[Json]) -> list[tuple[Json, Json]]:
        head = BaseServerConfig(host="10.9.8.7", port=self.port)
        iterator = RolloutCollectionHelper().run_examples(examples=rows, head_server_config=head)
        return [await task for task in iterator]

    async def pid(self, server: str) -> int:
        found = await asyncio.to_thread(self.instances)
        [pid] = [pid for name, pid in found if name.startswith(server)]
        return pid

    def instances(self) -> list[tuple[str, int]]:
        assert self.helper._loop is not None
        found = self.helper._loop.run(self.helper._instances())
        return [(one.server_name, one.pid) for one in found if one.pid is not None]

    async def polls(self) -> str:
        """The error of poll, '' if there is none."""
        try:
            await asyncio.to_thread(self.helper.poll)
        except RuntimeError as error:
            return str(error)
        return ""

    async def wait_for_poll(self, *, error: bool) -> str:
        async with asyncio.timeout(deadline_s()):
            while bool(found := await self.polls()) is not error:
                await asyncio.sleep(0.05)
        return found


def rows(count: int) -> list[Json]:
    params = {"input": [{"role": "user", "content": "go up"}], "tools": [TOOL], "temperature": 1.0}
    return [
        {
            "responses_create_params": params,
            "agent_ref": {"name": "player"},
            "_rowidx": number,
            "_ng_task_index": number,
        }
        for number in range(count)
    ]


@contextlib.asynccontextmanager
async def trainer(folder: Path, **more: Any) -> AsyncIterator[tuple[Trainer, list[Turns]]]:
    engines = [Turns(), Turns()]
    async with listening(engines[0]) as first, listening(engines[1]) as second:
        running = Trainer(folder, [f"{first}/v1", f"{second}/v1"], **more)
        try:
            await running.start()
            yield running, engines
        finally:
            await asyncio.to_thread(running.helper.shutdown)


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Trainer, list[Turns]]]:
    """One run for all tests that only use it. It was started with our entry and another one in PYTHONPATH."""
    folder = tmp_path_factory.mktemp("trainer")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([path_entry(), str(folder)]))
        async with trainer(folder) as found:
            yield found


async def test_the_results_satisfy_the_post_processing_of_nemo_rl_and_of_verls_recipe(
    shared: tuple[Trainer, list[Turns]],
) -> None:
    running, engines = shared
    await running.wait_for_poll(error=False)
    found = await running.rollouts(rows(6))
    assert await running.polls() == ""
    config = await asyncio.to_thread(get_global_config_dict)
    assert config.player.responses_api_agents.simple_agent.entrypoint == "app.py"
    assert config.policy_model.responses_api_models.vllm_model.api_key != "dummy_key"
    assert sorted(row["_rowidx"] for row, _ in found) == list(range(6))
    for row, result in found:
        log = message_log(row, result)
        assert [message.role for message in log] == ["user", "assistant"] * 2
        assert [message.token_ids for message in log[1::2]] == [CALL_TURN, TEXT_TURN]
        assert len(verl_message_log(result)) == 4
        assert loss_multiplier(result) == 1.0
        assert result["reward"] == 1.25
        assert result["reward_components"] == {"solved": 1.0, "tidy": 0.25}
    assert all(engine.turns for engine in engines), "both engines of policy_base_url are used"


async def test_a_killed_server_makes_poll_raise_and_costs_no_rollout(shared: tuple[Trainer, list[Turns]]) -> None:
    running, _ = shared
    await running.wait_for_poll(error=False)
    os.kill(await running.pid("wall"), signal.SIGKILL)
    assert "wall" in await running.wait_for_poll(error=True)
    found = await running.rollouts(rows(4))
    assert [loss_multiplier(result) for _, result in found] == [1.0] * 4
    await running.wait_for_poll(error=False)


async def test_the_servers_do_not_inherit_the_package(shared: tuple[Trainer, list[Turns]]) -> None:
    running, _ = shared
    await running.wait_for_poll(error=False)
    pids = [pid for _, pid in await asyncio.to_thread(running.instances)]
    inherited = [Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") for pid in pids]
    assert all(f"PYTHONPATH={running.dotenv.parent}".encode() in variables for variables in inherited)


async def test_the_servers_end_with_a_shutdown_that_can_be_repeated(here: Path) -> None:
    async with trainer(here, only_model=True) as (running, _):
        pids = [pid for _, pid in await asyncio.to_thread(running.instances)]
        assert len(running_heads(here)) == 1
        await asyncio.to_thread(running.helper.shutdown)
        assert pids and not [pid for pid in pids if alive(pid)]
        assert running_heads(here) == []
        await asyncio.to_thread(running.helper.shutdown)
        with pytest.raises(RuntimeError, match="not running"):
            running.helper.poll()


async def test_a_token_file_that_cannot_be_read_stops_the_start(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLYARD_TOKEN_FILE", "/nowhere")
    with pytest.raises(OperatorError, match="ROLLYARD_TOKEN_FILE=/nowhere cannot be read"):
        await Trainer(here, ["http://127.0.0.1:1/v1"], only_model=True).start()


async def test_a_taken_head_port_stops_the_start_and_leaves_nothing_running(here: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        head = {"host": "0.0.0.0", "port": taken.getsockname()[1]}
        running = Trainer(here, ["http://127.0.0.1:1/v1"], only_model=True, head_server=head)
        with pytest.raises((OperatorError, RunError), match="port"):
            await running.start()
    assert running_heads(here) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rollout_collection": {"max_attempt": 2}}, "max_attempts"),
        ({"config_paths": "wall.yaml"}, "config_paths .*list"),
        ({"config_paths": ["absent.yaml"]}, "absent.yaml"),
        ({"token_id_capture": {"enabled": True}}, "token_capture.enabled to false"),
        ({"head_server": {"port": "many"}}, "head_server"),
    ],
)
async def test_a_wrong_config_stops_the_start_with_one_line(here: Path, more: Json, message: str) -> None:
    running = Trainer(here, ["http://127.0.0.1:1/v1"], **more)
    with pytest.raises(OperatorError, match=message):
        await running.start()
    assert running_heads(here) == []


async def test_a_row_without_an_agent_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="row 0 has agent_ref"):
        RolloutCollectionHelper().run_examples([{"responses_create_params": {}}], BaseServerConfig(host="h", port=1))


IMPORTS = """
import nemo_gym
from nemo_gym.cli import GlobalConfigDictParserConfig, RunHelper
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_utils import HEAD_SERVER_KEY_NAME, BaseServerConfig
from nemo_gym.global_config import get_global_config_dict
print(nemo_gym.ROLLYARD, HEAD_SERVER_KEY_NAME)
"""


def test_one_entry_in_pythonpath_replaces_nemo_gym(capsys: pytest.CaptureFixture[str]) -> None:
    print_path_entry([])
    entry = capsys.readouterr().out.strip()
    assert entry == path_entry()
    imported = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": entry},
    )
    assert imported.stdout.split() == ["True", "head_server"]
