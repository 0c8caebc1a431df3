from __future__ import annotations

import signal
from pathlib import Path

import aiohttp

from tests.support.commands import announced, running_stack

SOKOBAN = "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
SERVE = ("ng_serve", "+port=0")
ROWS = "resources_servers/gsm8k/data/example.jsonl"


def address(line: str) -> str:
    return line.rpartition(" ")[2]


async def test_the_environment_of_a_config_is_served_without_its_agent_until_sigterm(tmp_path: Path) -> None:
    given = ("+protocol=openenv", f"+config_paths=[{SOKOBAN}]")
    async with announced(*SERVE, *given, cwd=tmp_path, end=signal.SIGTERM) as (process, line):
        assert line.startswith("grl_sokoban_resources_server (5 tasks") and "openenv at http://127.0.0.1:" in line
        async with aiohttp.ClientSession() as http, http.post(address(line) + "/reset", json={"seed": 1}) as response:
            assert "Sokoban" in (await response.json())["observation"]["text"]
    assert process.returncode == 0


async def test_an_environment_of_a_running_stack_is_served_with_other_rows_and_another_name(tmp_path: Path) -> None:
    servers = {"mine": {"resources_servers": {"gsm8k": {"entrypoint": "app.py"}}}}
    with running_stack(configs=servers, folder=tmp_path) as stack:
        given = (f"+head={stack.head_url}", "+environment=mine", f"+data={ROWS}", "+split=test", "+name=arithmetic")
        serving = announced(*SERVE, "+protocol=ors", *given, cwd=tmp_path, end=signal.SIGTERM)
        async with serving as (_, line), aiohttp.ClientSession() as http:
            assert line.startswith("arithmetic (")
            async with http.get(address(line) + "/splits") as response:
                assert await response.json() == [{"name": "test", "type": "test"}]
            session = {"x-session-id": "mine"}
            task = {"split": "test", "index": 0}
            async with http.post(address(line) + "/create", json=task, headers=session) as response:
                assert response.status == 200, await response.text()
            async with http.get(address(line) + "/arithmetic/prompt", headers=session) as response:
                assert "Natalia" in await response.text()
