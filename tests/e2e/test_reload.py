"""Code that is edited while ng_run runs, as its author sees it: real processes, real files."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import orjson
from omegaconf import OmegaConf

from tests.support.commands import DEADLINE_S, Running, command, ng_run

APP = """
from rollyard.resources_servers.base import Environment, Verdict, Verification, EnvironmentSettings, serve
from .rules import REWARD

class Coin(Environment[EnvironmentSettings]):
    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=REWARD)

server = serve(Coin)
"""


def written(root: Path) -> Path:
    """A stack of a user's own environment in a folder outside the repository; the file with its reward."""
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


async def says(run: Running, text: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while text not in run.printed:
            assert run.process.returncode is None, run.printed
            await asyncio.sleep(0.05)


async def rewards(cwd: Path, name: str) -> set[float]:
    options = ("+agent_name=player", "+input_jsonl_fpath=rows.jsonl", f"+output_jsonl_fpath={name}", "+num_repeats=2")
    done = await command("ng_collect_rollouts", *options, cwd=cwd)
    assert done.status == 0, done.err + done.out
    return {orjson.loads(line)["reward"] for line in (cwd / name).read_bytes().splitlines()}


async def test_edited_code_is_told_and_with_reload_the_next_collection_plays_it(tmp_path: Path) -> None:
    rules = written(tmp_path)
    async with ng_run(*ARGUMENTS, cwd=tmp_path) as run:
        rules.write_text("REWARD = 2.0\n")
        await says(run, "coin/rules.py has changed; restart ng_run to use the new code, or start it with +reload=true")
        shown = await command("ng_status", "+json=true", cwd=tmp_path)
        changed = {one["server_name"]: one["changed_files"] for one in orjson.loads(shown.out)}
        assert changed == {"coin": ["resources_servers/coin/rules.py"], "player": [], "policy_model": []}

    async with ng_run(*ARGUMENTS, "+reload=true", cwd=tmp_path) as run:
        rules.write_text("REWARD =\n")
        await says(run, "coin cannot start with the changed code: ")
        assert "SyntaxError: invalid syntax (rules.py, line 1); its old code keeps running" in run.printed
        ready = run.printed.count("  ready  ")
        rules.write_text("REWARD = 3.0  # again\n")
        async with asyncio.timeout(DEADLINE_S):
            while run.printed.count("  ready  ") == ready:
                await asyncio.sleep(0.05)
        assert await rewards(tmp_path, "new.jsonl") == {3.0}

        rules.write_text("REWARD = 4.0  # and once more\n")
        async with asyncio.timeout(DEADLINE_S):
            while run.printed.count("reloading coin") < 3:
                await asyncio.sleep(0.01)
        children = children_of(run.process.pid)
        run.process.send_signal(signal.SIGKILL)
        await run.process.wait()
        async with asyncio.timeout(DEADLINE_S):
            while any(map(alive, children)):
                await asyncio.sleep(0.05)
        assert len(children) >= 3


async def test_reload_is_refused_where_it_cannot_work(tmp_path: Path) -> None:
    written(tmp_path)
    done = await command("ng_run", *ARGUMENTS, "+reload=true", "+colocate=true", cwd=tmp_path)
    assert done.status == 2 and "+reload=true does not work with +colocate" in done.err


def children_of(pid: int) -> list[int]:
    listed = (Path("/proc") / str(pid) / "task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
