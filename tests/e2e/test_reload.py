"""Code edited while ng_run runs: real processes, real files."""

from __future__ import annotations

import signal
from pathlib import Path

import orjson
import pytest
from omegaconf import OmegaConf

import rollyard
from tests.support.commands import Running, in_thread, ng_run
from tests.support.processes import alive, children_of
from tests.support.waiting import deadline_s, until

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


ROLLOUT = b'{"responses_create_params": {"input": "hi"}, "response": {"output": []}}'
ARGUMENTS = ("+config_paths=coin.yaml", "+server_roots=elsewhere", "+head_port=0")


async def printed(run: Running, text: str, times: int = 1) -> None:
    """Wait until `text` has been printed that often."""
    await until(lambda: run.printed.count(text) >= times or run.process.returncode is not None)
    assert run.process.returncode is None, run.printed


async def test_edited_code_is_reported_by_the_run_and_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rules = write_project(tmp_path)
    async with ng_run(*ARGUMENTS, "+colocate=true", cwd=tmp_path) as run:
        rules.write_text("REWARD = 2.0\n")
        await printed(run, "coin/rules.py has changed")
        status = await in_thread("ng_status", "+json=true", capsys=capsys)
    changed = {server["server_name"]: server["changed_files"] for server in orjson.loads(status.out)}
    assert changed == {"coin": ["resources_servers/coin/rules.py"], "player": [], "policy_model": []}


async def test_with_reload_edited_code_is_used_broken_code_is_refused_and_a_kill_leaves_nothing(
    tmp_path: Path,
) -> None:
    rules = write_project(tmp_path)
    alone = ("~player", "~policy_model")
    async with (
        ng_run(*ARGUMENTS, *alone, "+reload=true", cwd=tmp_path) as run,
        rollyard.connect(folder=tmp_path) as stack,
    ):
        rules.write_text("REWARD =\n")
        await printed(run, "SyntaxError: invalid syntax (rules.py, line 1)")
        ready = run.printed.count("  ready  ")
        rules.write_text("REWARD = 3.0  # again\n")
        await printed(run, "  ready  ", ready + 1)
        verdict = await stack.access.clients.client.post("coin", "/verify", ROLLOUT, deadline_s())
        assert orjson.loads(verdict.body)["reward"] == 3.0

        rules.write_text("REWARD = 4.0  # and once more\n")
        await printed(run, "reloading coin", 3)
        children = children_of(run.process.pid)
        assert children
        run.process.send_signal(signal.SIGKILL)
        await run.process.wait()
        await until(lambda: not any(map(alive, children)))
