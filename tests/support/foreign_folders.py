"""A folder laid out like an installation of NeMo Gym, whose server is a small FastAPI program with cookies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rollyard.records.types import Json

COUNTER_APP = """
import os, sys, uuid
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from omegaconf import OmegaConf

sys.path.append(str(Path.cwd().parent.parent))
from nemo_gym.server_utils import initialize_ray

config = OmegaConf.create(os.environ["NEMO_GYM_CONFIG_DICT"])
name = os.environ["NEMO_GYM_CONFIG_PATH"]
((_, implementations),) = config[name].items()
((_, settings),) = implementations.items()
if settings.get("refuses"):
    sys.exit("the counter refuses to start")
initialize_ray()
app, sessions = FastAPI(), {}


@app.get("/")
async def liveness():
    return {"status": "ok"}


@app.get("/settings")
async def show_settings():
    return {"own": OmegaConf.to_container(settings), "all": OmegaConf.to_container(config), "pid": os.getpid()}


@app.post("/seed_session")
async def seed(response: Response):
    session = uuid.uuid4().hex
    sessions[session] = 0
    response.set_cookie("counter_session", session)
    return {}


@app.post("/add")
async def add(request: Request):
    sessions[request.cookies["counter_session"]] += (await request.json())["x"]
    return {"total": sessions[request.cookies["counter_session"]]}


@app.post("/verify")
async def verify(request: Request):
    body = await request.json()
    total = sessions[request.cookies["counter_session"]]
    seen = {"cookies": sorted(request.cookies), "headers": sorted(request.headers)}
    return {**body, "reward": float(total == body["wanted"]), "seen": seen}


if __name__ == "__main__":
    uvicorn.run(app, host=settings.host, port=settings.port, log_level="warning")
"""

SCRIPTED_MODEL = """
import orjson

from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Server

def _item(kind, **fields):
    return {"type": kind, "status": "completed", **fields}

class Scripted(Server):
    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.route("/v1/responses", self._respond)

    async def _respond(self, call: RawRequest) -> bytes:
        done = sum(item.get("type") == "function_call_output" for item in call.json()["input"])
        if done < 2:
            output = [_item("function_call", id=f"f{done}", call_id=f"c{done}", name="add", arguments='{"x": 2}')]
        else:
            text = [{"type": "output_text", "text": "done", "annotations": []}]
            output = [_item("message", id="m", role="assistant", content=text)]
        return orjson.dumps({"id": "r", "object": "response", "created_at": 0, "model": "scripted", "output": output,
                             "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "status": "completed"})

server = Scripted
"""

_SERVER_UTILS = """
from pathlib import Path

def initialize_ray():
    (Path(__file__).parent / "ray_started").touch()
"""


def make_root(
    folder: Path, *, app: str = COUNTER_APP, family: str = "resources_servers", name: str = "counter"
) -> Path:
    """Create NeMo Gym's layout in `folder`, with one server. Return the server's folder."""
    package = folder / "nemo_gym"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "server_utils.py").write_text(_SERVER_UTILS)
    server = folder / family / name
    (server / "configs").mkdir(parents=True)
    (server / "app.py").write_text(app)
    return server


def entry(family: str, implementation: str, **settings: Any) -> Json:
    """A config entry with one server."""
    return {family: {implementation: settings}}


def program_entry(**settings: Any) -> Json:
    return entry("resources_servers", "counter", entrypoint="app.py", python=sys.executable, **settings)
