"""What is measured: configs, rows, and the plug-ins that only benchmarks need, written into a user's own folder."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.commands import Config, write_rows
from rollyard.resources_servers.grl_sokoban.generate_test_examples import labelled
from rollyard.resources_servers.grl_sokoban.row_selection import RowSelection

AGENT = "agent"
REPEATS = 16
"""Rollouts of a row, the default of ng_collect_rollouts."""

TRIVIAL_WORLD = '''\
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve, tool


class Trivial(Environment[EnvironmentSettings]):
    @tool
    async def step(self, actions: list[str]) -> str:
        """Nothing happens."""
        return "ok"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=1.0)


server = serve(Trivial)
'''

INSTANT_AGENT = '''\
import orjson

from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings


class InstantAgent(Server):
    """Answers /run at once, with as many bytes as an episode of a few turns has."""

    def __init__(self, settings: ServerSettings, context: Context) -> None:
        super().__init__(settings, context)
        text = {"type": "output_text", "text": "said and done. " * 300, "annotations": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        self._answer = orjson.dumps({"reward": 1.0, "success": True, "response": {"output": [item]}})
        self.route("/run", self._run)

    async def _run(self, call: RawRequest) -> bytes:
        return self._answer


server = InstantAgent
'''


def plug_ins(folder: Path) -> Path:
    """A user's folder with a world and an agent of its own, for +server_roots."""
    for path, code in (
        ("resources_servers/trivial/app.py", TRIVIAL_WORLD),
        ("agents/instant_agent/app.py", INSTANT_AGENT),
    ):
        file = folder / path
        file.parent.mkdir(parents=True)
        file.write_text(code)
    return folder


def game(policy_url: str, world: str = "grl_sokoban") -> Config:
    """vllm_model before the scripted policy, a world, and the game agent."""
    model = {"base_url": f"{policy_url}/v1", "api_key": "none", "model": "script"}
    names = {
        "max_steps": 10,
        "resources_server": {"type": "resources_servers", "name": "world"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    return {
        "model": {"responses_api_models": {"vllm_model": model}},
        "world": {"resources_servers": {world: {}}},
        AGENT: {"agents": {"game_agent": names}},
    }


def instant() -> Config:
    """One agent that asks nobody."""
    return {AGENT: {"agents": {"instant_agent": {}}}}


def sokoban_rows(path: Path, rollouts: int, *, seed: int, turns: int) -> Path:
    """Rows for `rollouts`, none of which the script can solve: it moves `turns - 2` times, and they need more."""
    wanted = -(-rollouts // REPEATS)
    rows = list(islice(labelled(seed, wanted, RowSelection(min_moves=turns)), wanted))
    return write_rows(path, rows)


def plain_rows(path: Path, count: int) -> Path:
    """Rows of about a kilobyte that no world needs to read."""
    said = "A question of ordinary length. " * 30

    def row(index: int) -> dict[str, Any]:
        return {"id": index, "responses_create_params": {"input": [{"role": "user", "content": said}]}}

    return write_rows(path, [row(index) for index in range(count)])
