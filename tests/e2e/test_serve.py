"""ng_serve as a process."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.support.commands import in_this_process, ng_serve
from tests.support.stacks import load_config, processes

GSM8K = "resources_servers/gsm8k/configs/gsm8k.yaml"
ROWS = "resources_servers/gsm8k/data/example.jsonl"


def address(line: str) -> str:
    return line.rpartition(" ")[2]


async def test_an_environment_is_served_over_openenv_until_sigterm(tmp_path: Path) -> None:
    async with ng_serve("+protocol=openenv", "+environment=grl_sokoban", cwd=tmp_path) as (process, line):
        assert line.startswith("grl_sokoban (5 tasks, played with 1 tools) over openenv at http://127.0.0.1:")
        async with aiohttp.ClientSession() as http, http.post(address(line) + "/reset", json={"seed": 1}) as response:
            assert "Sokoban" in (await response.json())["observation"]["text"]
    assert process.returncode == 0


async def test_the_environment_of_a_config_is_served_without_its_agent(tmp_path: Path) -> None:
    given = (f"+config_paths=[{GSM8K}]", f"+data={ROWS}", "+split=test", "+name=arithmetic")
    async with ng_serve("+protocol=ors", *given, cwd=tmp_path) as (_, line), aiohttp.ClientSession() as http:
        assert line.startswith("arithmetic (")
        async with http.get(address(line) + "/splits") as response:
            assert await response.json() == [{"name": "test", "type": "test"}]


async def test_an_environment_of_a_running_stack_is_served(tmp_path: Path) -> None:
    servers = load_config(
        config={"mine": {"resources_servers": {"gsm8k": {"entrypoint": "app.py"}}}}, tmp_path=tmp_path
    )
    async with processes(servers, tmp_path) as stack:
        given = (f"+head={stack.head_url}", "+environment=mine")
        async with ng_serve("+protocol=openenv", *given, cwd=tmp_path) as (_, line), aiohttp.ClientSession() as http:
            response = await http.post(address(line) + "/reset", json={"index": 0})
            assert "Natalia" in (await response.json())["observation"]["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["+protocol=smoke"], "openenv"),
        (["+protocol=openenv"], "nothing to serve"),
        (["+protocol=openenv", "+environment=grl_sokobann"], "grl_sokoban"),
        (["+protocol=openenv", "+environment=gsm8k", "+host=0.0.0.0"], "without a token"),
        (["+protocol=openenv", "+environment=gsm8k", "+data=nowhere.jsonl"], "does not exist"),
        (["+protocol=openenv", f"+config_paths=[{GSM8K}]", "+environment=gsm8k"], "gsm8k_resources_server"),
    ],
)
def test_a_mistyped_option_is_refused_with_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    finished = in_this_process("ng_serve", *arguments, capsys=capsys)
    assert finished.status == 2, finished.err
    assert message in finished.err
    assert "Traceback" not in finished.err
