"""The environment and the agents that these faults need, written into a user's folder."""

from __future__ import annotations

from pathlib import Path

import orjson

WITNESS = '''\
"""An environment that detects whether every response reached its episode."""

import asyncio
import random
import time

import orjson

from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, serve, tool


class WitnessSettings(EnvironmentSettings):
    block_s: float = 0.0
    block_at: int = 60
    twice: bool = False
    start_error: str = ""


class Witness(Environment[WitnessSettings]):
    calls = 0
    blocked = 0

    def __init__(self, task, settings):
        super().__init__(task, settings)
        self.turn_number = 0

    def _answer(self):
        self.turn_number += 1
        return {"task_id": self.task["id"], "turn": self.turn_number, "pad": "x" * 200}

    @tool
    async def step(self, actions: list[str]) -> dict:
        """Look or move."""
        Witness.calls += 1
        if self.settings.block_s and Witness.calls >= self.settings.block_at and not Witness.blocked:
            Witness.blocked = 1
            time.sleep(self.settings.block_s)
        return self._answer()

    async def verify(self, response: Verification) -> Verdict:
        received = []
        for item in response.response.get("output") or []:
            if item.get("type") == "function_call_output":
                try:
                    result = orjson.loads(item["output"])
                except (ValueError, TypeError):
                    continue
                if isinstance(result, dict) and "task_id" in result:
                    received.append((result["task_id"], result["turn"]))
        expected = [(self.task["id"], turn + 1) for turn in range(len(received))]
        right = received == expected and len(received) == self.turn_number
        wrong = "" if right else f"received {received}, played {self.turn_number}"
        return Verdict(reward=REWARD if right else 0.0, success=right, wrong=wrong)


REWARD = 1.0


class Doubling:
    """A transport that writes every response again later."""

    def __init__(self, transport):
        self._transport = transport

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def write(self, data):
        self._transport.write(data)
        Served.doubled += 1
        asyncio.get_running_loop().call_later(random.uniform(0.0, 0.02), self._again, bytes(data))

    def _again(self, data):
        if not self._transport.is_closing():
            self._transport.write(data)


class Served(serve(Witness)):
    doubled = 0

    async def start(self):
        await super().start()
        if self.settings.start_error:
            raise RuntimeError(self.settings.start_error)

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and self.settings.twice and scope["path"] == "/step":
            cycle = send.__self__
            cycle.transport = Doubling(cycle.transport)
        await super().__call__(scope, receive, send)


server = Served
'''

ODD_AGENT = '''\
"""An agent that returns what the row contains."""

import time

import orjson

from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings


class OddSettings(ServerSettings):
    resources_server: dict | None = None
    block_s: float = 0.0


class OddAgent(Server):
    Settings = OddSettings

    def __init__(self, settings, context: Context) -> None:
        super().__init__(settings, context)
        self.route("/run", self._run)

    async def _run(self, call):
        row = call.json()
        return orjson.dumps({**row, "reward": 1.0, "response": {"output": []}, **(row.get("answer") or {})})


server = OddAgent
'''

BLOCKING_AGENT = '''\
"""The game agent, with an event loop that blocks."""

import time

from rollyard.agents.game_agent.app import GameAgent, GameAgentSettings


class BlockingSettings(GameAgentSettings):
    block_s: float = 8.0
    block_at: int = 30


class BlockingAgent(GameAgent):
    Settings = BlockingSettings
    episodes = 0
    blocked = 0

    async def play(self, episode):
        BlockingAgent.episodes += 1
        if BlockingAgent.episodes in (self.settings.block_at, self.settings.block_at + 20):
            time.sleep(self.settings.block_s)
        return await super().play(episode)


server = BlockingAgent
'''

STEP = {
    "type": "function",
    "name": "step",
    "description": "Look or move.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"actions": {"type": "array", "items": {"type": "string"}}},
        "required": ["actions"],
    },
}


def write_plugins(folder: Path) -> None:
    for place, code in (
        ("resources_servers/witness", WITNESS),
        ("agents/odd_agent", ODD_AGENT),
        ("agents/blocking_agent", BLOCKING_AGENT),
    ):
        (folder / place).mkdir(parents=True, exist_ok=True)
        (folder / place / "app.py").write_text(code)


def write_rows(path: Path, tasks: int, pad: int = 600) -> Path:
    """Write rows of about a kilobyte for the witness environment."""
    rows = [
        {
            "id": task,
            "responses_create_params": {
                "input": [{"role": "user", "content": f"Play number {task}. " + "Take your time. " * (pad // 16)}],
                "tools": [STEP],
            },
        }
        for task in range(tasks)
    ]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    return path
