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
import asyncio

import orjson

from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings


class InstantSettings(ServerSettings):
    latency_s: float = 0.0


class InstantAgent(Server):
    """Responds to /run after `latency_s`, with the size of an episode of a few turns."""

    Settings = InstantSettings

    def __init__(self, settings: InstantSettings, context: Context) -> None:
        super().__init__(settings, context)
        text = {"type": "output_text", "text": "A short sentence. " * 250, "annotations": []}
        item = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
        self._latency_s = settings.latency_s
        self._answer = orjson.dumps({"reward": 1.0, "success": True, "response": {"output": [item]}})
        self.route("/run", self._run)

    async def _run(self, call: RawRequest) -> bytes:
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
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


def game(model_url: str, environment: str = "grl_sokoban", max_steps: int = 10, agent: str = "game_agent") -> Config:
    """Return a config: vllm_model in front of the scripted model, an environment, and an agent."""
    model = {"base_url": f"{model_url}/v1", "api_key": "none", "model": "script"}
    names = {
        "max_steps": max_steps,
        "resources_server": {"type": "resources_servers", "name": "environment"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    return {
        "model": {"responses_api_models": {"vllm_model": model}},
        "environment": {"resources_servers": {environment: {}}},
        AGENT: {"agents": {agent: names}},
    }


def instant(latency_s: float = 0.0, replicas: int = 1) -> Config:
    """Return a config with only the instant agent."""
    return {AGENT: {"agents": {"instant_agent": {"latency_s": latency_s, "replicas": replicas}}}}


def sokoban_rows(path: Path, rollouts: int, *, seed: int, turns: int) -> Path:
    """Write rows for `rollouts`, which allow an episode of `turns`.

    None can be solved by the script: it moves up and down, and they need at least six moves.
    """
    count = -(-rollouts // REPEATS)
    rows = islice(labelled(seeded_rooms(seed), RowSelection(min_moves=6)), count)
    return write_rows(path, [{**row, "max_steps": max(100, turns)} for row in rows])


def plain_rows(path: Path, count: int) -> Path:
    """Write rows of about 1 kB for an agent that ignores them."""
    question = "A question of ordinary length. " * 30

    def row(index: int) -> dict[str, Any]:
        return {"id": index, "responses_create_params": {"input": [{"role": "user", "content": question}]}}

    return write_rows(path, [row(index) for index in range(count)])
