"""The servers of a NeMo Gym stack that a collector sees, with the responses of nemo-gym 0.4.0, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import orjson
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rollyard.records.types import Json
from tests.support.scripted_engine import listening

RunRow = Callable[[Json, int], Json | JSONResponse]
"""(row, number of earlier attempts of this rollout) -> the answer of /run."""


def graded(row: Json, attempt: int) -> Json:
    """The answer of simple_agent: the row, the response and the verdict."""
    content = [{"type": "output_text", "text": "A", "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    return {**row, "response": {"id": "r", "output": [message]}, "reward": 1.0, "expected_answer": row.get("gold")}


@dataclass
class NemoGymStack:
    """Its head, and an agent whose `/run` is a function."""

    run_row: RunRow = graded
    max_steps: int = 5
    """A setting of the agent."""
    url: str = ""
    """URL of the head."""
    agent_url: str = ""
    requests: list[Json] = field(default_factory=list)
    """Bodies that the agent received."""
    headers: list[dict[str, str]] = field(default_factory=list)
    attempts: Counter[tuple[int, int]] = field(default_factory=Counter)
    hold: asyncio.Event | None = None
    """If set, the agent responds only once it is set."""
    host: str = "127.0.0.1"
    """Host of the agent in the head's config."""

    def config(self) -> Json:
        """The merged config as its head serves it: references are not resolved, secrets are not redacted."""
        address = {"host": self.host, "port": urlsplit(self.agent_url).port, "num_workers": None}
        model = {"entrypoint": "app.py", "openai_api_key": "${policy_api_key}", "openai_base_url": "${policy_base_url}"}
        agent = {
            "entrypoint": "app.py",
            "resources_server": {"type": "resources_servers", "name": "mcqa"},
            "model_server": {"type": "responses_api_models", "name": "policy_model"},
            "datasets": [{"name": "example", "jsonl_fpath": "example.jsonl"}],
            "max_steps": self.max_steps,
        }
        return {
            "config_paths": ["a.yaml"],
            "policy_api_key": "sk-of-this-test",
            "policy_base_url": "http://127.0.0.1:1/v1",
            "head_server": {"host": "127.0.0.1", "port": 1},
            "disallowed_ports": [1],
            "mcqa": {"resources_servers": {"mcqa": {"entrypoint": "app.py", "grading_mode": None, **address}}},
            "policy_model": {"responses_api_models": {"openai_model": {**model, **address}}},
            "mcqa_simple_agent": {"responses_api_agents": {"simple_agent": {**agent, **address}}},
        }

    def processes(self) -> list[Json]:
        """The list of processes: the agent, and a model server that has exited."""
        common = {"host": "127.0.0.1", "entrypoint": "app.py", "status": None, "uptime_seconds": None, "pid": 4}
        listed = (
            ("mcqa_simple_agent", "responses_api_agents", "simple_agent", self.agent_url),
            ("policy_model", "responses_api_models", "openai_model", "http://127.0.0.1:1"),
        )
        return [
            {"process_name": name, "config_path": name, "server_type": family, "name": kind, "url": url}
            | {**common, "port": urlsplit(url).port, "start_time": 1.7e9}
            for name, family, kind, url in listed
        ]


@contextlib.asynccontextmanager
async def nemo_gym_stack(stack: NemoGymStack) -> AsyncIterator[NemoGymStack]:
    head, agent = FastAPI(), FastAPI()

    @head.get("/")
    @agent.get("/")
    async def liveness() -> Json:
        return {"status": "ok"}

    @head.get("/global_config_dict_yaml")
    async def global_config_dict_yaml() -> str:
        return yaml.safe_dump(stack.config(), sort_keys=False)

    @head.get("/server_instances")
    async def server_instances() -> list[Json]:
        return stack.processes()

    async def run(request: Request) -> JSONResponse:
        row = orjson.loads(await request.body())
        stack.requests.append(row)
        stack.headers.append(dict(request.headers))
        key = (row["_ng_task_index"], row["_ng_rollout_index"])
        attempt = stack.attempts[key]
        stack.attempts[key] += 1
        if stack.hold is not None:
            await stack.hold.wait()
        answer = stack.run_row(row, attempt)
        return answer if isinstance(answer, JSONResponse) else JSONResponse(answer)

    agent.add_api_route("/run", run, methods=["POST"], response_model=None)
    async with listening(agent) as agent_url, listening(head) as url:
        stack.agent_url, stack.url = agent_url, url
        yield stack
