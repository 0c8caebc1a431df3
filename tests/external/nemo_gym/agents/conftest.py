"""NeMo Gym's servers, started once for this folder, and Rollyard's agents in front of them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.agents.base import Agent
from rollyard.records.run_types import Directory
from rollyard.records.types import Json
from rollyard.services.http.client import AddressBook, RetryPolicy, ServerClient
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.server.app import Context
from tests.modules import ROOT
from tests.support.in_process import KEYS, InProcessServers, Script, agent
from tests.support.scripted_engine import listening

PYTHON = ROOT / ".venv-nemo-gym" / "bin" / "python"


class FullScript(Script):
    """A script whose responses have every field that NeMo Gym's models require."""

    def response(self, request: Json) -> Json:
        answer = super().response(request)
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {**answer, "usage": {**answer["usage"], **details}}


@dataclass
class Gym:
    """NeMo Gym's servers by name, and the port where their agents expect a model server."""

    ports: dict[str, int]
    model_port: int

    @contextlib.asynccontextmanager
    async def our_agent(
        self, environment: str, script: Script, kind: type[Agent[Any]], **settings: Any
    ) -> AsyncIterator[InProcessServers]:
        """Start one of our agents between a scripted model and an environment of NeMo Gym."""
        url = f"http://127.0.0.1:{self.ports[environment]}"
        transport = LocalTransport(HttpTransport())

        async def directory() -> Directory:
            urls = {"environment": [url], "model": ["http://model:1"], "agent": ["http://agent:1"]}
            foreign = {url: environment}
            return Directory(run_id=KEYS.run_id, servers=urls, families={}, settings={}, foreign=foreign)

        client = ServerClient(transport, KEYS, AddressBook(directory), RetryPolicy(wait_s=0.2))
        player = agent(kind, **settings)(Context("agent", KEYS, client))
        transport.mount("http://model:1", script.model(Context("model", KEYS, client)))
        transport.mount("http://agent:1", player)
        try:
            yield InProcessServers(client, {"agent": player}, transport)
        finally:
            await player.stop()
            await transport.close()

    async def their_rollout(self, name: str, script: Script, row: Json) -> Json:
        model = script.model(Context("model", KEYS, None))  # type: ignore[arg-type]
        transport = HttpTransport()
        try:
            async with listening(model, self.model_port):
                url = f"http://127.0.0.1:{self.ports[name]}/run"
                answer = await transport.send(
                    "POST", url, orjson.dumps(row), {"content-type": "application/json"}, 60.0
                )
        finally:
            await transport.close()
        assert answer.status == 200, answer.body
        rollout: Json = orjson.loads(answer.body)
        return rollout


@pytest.fixture(scope="session")
def gym() -> Iterator[Gym]:
    if not PYTHON.exists():
        pytest.fail("run `make test-nemo-gym`, which creates .venv-nemo-gym")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        model_port = free.getsockname()[1]
    program = Path(__file__).with_name("serve_gym.py")
    with subprocess.Popen(
        [str(PYTHON), str(program), str(model_port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdin
        line = "-"
        while not line.startswith("{"):
            line = process.stdout.readline()
            assert line, "NeMo Gym's servers did not start; see their output above"
        yield Gym(json.loads(line), model_port)
        process.stdin.close()
