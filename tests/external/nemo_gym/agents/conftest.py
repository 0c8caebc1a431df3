"""NeMo Gym's servers, started once for this folder, and Rollyard's agents in front of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.agents.base import Agent
from rollyard.records.types import Json
from rollyard.services.http.transport import HttpTransport
from rollyard.services.server.app import Context
from tests.modules import ROOT
from tests.support.foreign_servers import foreign_environment
from tests.support.in_process import KEYS, InProcessServers, Script
from tests.support.processes import free_port
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

    def our_agent(
        self, environment: str, script: Script, kind: type[Agent[Any]], **settings: Any
    ) -> AbstractAsyncContextManager[InProcessServers]:
        """One of our agents between a scripted model and an environment of NeMo Gym."""
        return foreign_environment(f"http://127.0.0.1:{self.ports[environment]}", script, kind, **settings)

    async def their_rollout(self, name: str, script: Script, row: Json) -> Json:
        model = script.model(Context("model", KEYS, None))  # type: ignore[arg-type]
        transport = HttpTransport()
        try:
            async with listening(model, self.model_port):
                url, sent = f"http://127.0.0.1:{self.ports[name]}/run", {"content-type": "application/json"}
                answer = await transport.send("POST", url, orjson.dumps(row), sent, 60.0)
        finally:
            await transport.close()
        assert answer.status == 200, answer.body
        rollout: Json = orjson.loads(answer.body)
        return rollout


@pytest.fixture(scope="session")
def gym() -> Iterator[Gym]:
    if not PYTHON.exists():
        pytest.fail("run `make test-nemo-gym`, which creates .venv-nemo-gym")
    model_port = free_port()
    command = [str(PYTHON), str(Path(__file__).with_name("serve_gym.py")), str(model_port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdin
        line = "-"
        while not line.startswith("{"):
            line = process.stdout.readline()
            assert line, "NeMo Gym's servers did not start; see their output above"
        yield Gym(json.loads(line), model_port)
        process.stdin.close()
