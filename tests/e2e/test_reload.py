"""Code edited while ng_run runs: real processes, real files."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import orjson
import pytest
from omegaconf import OmegaConf

from tests.support.commands import DEADLINE_S, Running, command, in_this_process, ng_run
from tests.support.processes import alive, children_of
from tests.support.waiting import until

APP = """
from rollyard.resources_servers.base import Environment, Verdict, Verification, EnvironmentSettings, serve
from .rules import REWARD

class Coin(Environment[EnvironmentSettings]):
    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=REWARD)

server = serve(Coin)
"""


def write_project(root: Path) -> Path:
    """Write a config and an environment of a user's own; return the file that contains its reward."""
    folder = root / "elsewhere" / "resources_servers" / "coin"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "rules.py").write_text("REWARD = 1.0\n")
    names = {
        "resources_server": {"type": "resources_servers", "name": "coin"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    tree = {
        "policy_model": {"responses_api_models": {"builtin_model": {"model": "builtin"}}},
        "coin": {"resources_servers": {"coin": {}}},
        "player": {"agents": {"simple_agent": names}},
    }
    (root / "coin.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(tree)))
    (root / "rows.jsonl").write_bytes(b'{"responses_create_params": {"input": [{"role": "user", "content": "hi"}]}}\n')
    return folder / "rules.py"


ARGUMENTS = ("+config_paths=coin.yaml", "+server_roots=elsewhere", "+head_port=0")


async def printed(run: Running, text: str, times: int = 1) -> None:
    """Wait until `text` has been printed that often."""
    async with asyncio.timeout(DEADLINE_S):
        while run.printed.count(text) < times:
            assert run.process.returncode is None, run.printed
            await asyncio.sleep(0.02)


async def rewards(cwd: Path, name: str) -> set[float]:
    options = ("+agent_name=player", "+input_jsonl_fpath=rows.jsonl", f"+output_jsonl_fpath={name}", "+num_repeats=2")
    done = await command("ng_collect_rollouts", *options, cwd=cwd)
    assert done.status == 0, done.err + done.out
    return {orjson.loads(line)["reward"] for line in (cwd / name).read_bytes().splitlines()}


async def test_edited_code_is_reported_and_with_reload_the_next_collection_plays_it(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("report", "reload")]
    for folder in folders:
        folder.mkdir()
    await asyncio.gather(edit_without_reload(folders[0]), edit_with_reload(folders[1]))


async def edit_without_reload(folder: Path) -> None:
    rules = write_project(folder)
    async with ng_run(*ARGUMENTS, cwd=folder) as run:
        rules.write_text("REWARD = 2.0\n")
        await printed(
            run, "coin/rules.py has changed; restart ng_run to use the new code, or start it with +reload=true"
        )
        status = await command("ng_status", "+json=true", cwd=folder)
    changed = {server["server_name"]: server["changed_files"] for server in orjson.loads(status.out)}
    assert changed == {"coin": ["resources_servers/coin/rules.py"], "player": [], "policy_model": []}


async def edit_with_reload(folder: Path) -> None:
    rules = write_project(folder)
    async with ng_run(*ARGUMENTS, "+reload=true", cwd=folder) as run:
        rules.write_text("REWARD =\n")
        await printed(run, "coin cannot start with the changed code: ")
        assert "SyntaxError: invalid syntax (rules.py, line 1); its old code keeps running" in run.printed
        ready = run.printed.count("  ready  ")
        rules.write_text("REWARD = 3.0  # again\n")
        await printed(run, "  ready  ", ready + 1)
        assert await rewards(folder, "new.jsonl") == {3.0}

        rules.write_text("REWARD = 4.0  # and once more\n")
        await printed(run, "reloading coin", 3)
        children = children_of(run.process.pid)
        run.process.send_signal(signal.SIGKILL)
        await run.process.wait()
        await until(lambda: not any(map(alive, children)))
        assert len(children) >= 3


def test_reload_with_colocate_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = in_this_process("ng_run", *ARGUMENTS, "+reload=true", "+colocate=true", capsys=capsys)
    assert done.status == 2 and "+reload=true does not work with +colocate" in done.err
