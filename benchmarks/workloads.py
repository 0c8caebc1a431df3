"""Configs, rows and plug-ins for benchmarks. Plug-ins are written to a temporary folder, as users write theirs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.commands import Config, write_rows
from rollyard.resources_servers.grl_sokoban.generate_test_examples import RowSelection, labelled, seeded_rooms

AGENT = "agent"
REPEATS = 16
"""Rollouts per row; the default of ng_collect_rollouts."""

TRIVIAL_ENVIRONMENT = '''\
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve, tool


class Trivial(Environment[EnvironmentSettings]):
    @tool
    async def step(self, actions: list[str]) -> str:
        """Do nothing."""
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
    """Responds to /run at once, with the size of an episode of a few turns."""

    def __init__(self, settings: ServerSettings, context: Context) -> None:
        super().__init__(settings, context)
        text = {"type": "output_text", "text": "A short sentence. " * 250, "annotations": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        self._answer = orjson.dumps({"reward": 1.0, "success": True, "response": {"output": [item]}})
        self.route("/run", self._run)

    async def _run(self, call: RawRequest) -> bytes:
        return self._answer


server = InstantAgent
'''


def plug_ins(folder: Path) -> Path:
    """Write an environment and an agent to a folder for +server_roots; return the folder."""
    for path, code in (
        ("resources_servers/trivial/app.py", TRIVIAL_ENVIRONMENT),
        ("agents/instant_agent/app.py", INSTANT_AGENT),
    ):
        file = folder / path
        file.parent.mkdir(parents=True)
        file.write_text(code)
    return folder


def game(model_url: str, environment: str = "grl_sokoban", *, replicas: int = 1, max_steps: int = 10) -> Config:
    """Return a config: vllm_model in front of the scripted model, an environment, and the game agent."""
    scaling = {"replicas": replicas} if replicas > 1 else {}
    model = {"base_url": f"{model_url}/v1", "api_key": "none", "model": "script", **scaling}
    names = {
        "max_steps": max_steps,
        **scaling,
        "resources_server": {"type": "resources_servers", "name": "environment"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    return {
        "model": {"responses_api_models": {"vllm_model": model}},
        "environment": {"resources_servers": {environment: scaling}},
        AGENT: {"agents": {"game_agent": names}},
    }


def instant() -> Config:
    """Return a config with only the instant agent."""
    return {AGENT: {"agents": {"instant_agent": {}}}}


def sokoban_rows(path: Path, rollouts: int, *, seed: int, turns: int) -> Path:
    """Write rows for `rollouts`. None can be solved by the script: it makes `turns - 2` moves, and they need more."""
    count = -(-rollouts // REPEATS)
    rows = list(islice(labelled(seeded_rooms(seed), RowSelection(min_moves=turns)), count))
    return write_rows(path, rows)


def plain_rows(path: Path, count: int, *, kb: int = 1) -> Path:
    """Write rows of about `kb` kB for which no environment has to do anything."""
    question = "A question of ordinary length. " * 30 * kb

    def row(index: int) -> dict[str, Any]:
        return {"id": index, "responses_create_params": {"input": [{"role": "user", "content": question}]}}

    return write_rows(path, [row(index) for index in range(count)])
