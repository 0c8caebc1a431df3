"""Serves environments and agents of NeMo Gym in one process. Run by the interpreter of .venv-nemo-gym.

`python serve_gym.py MODEL_PORT` prints one line: a JSON object with the port of each server. The agents call the model
server at MODEL_PORT. The process ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from mcp.server.fastmcp import FastMCP
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import GlobalAIOHTTPAsyncClientConfig, ServerClient, set_global_aiohttp_client
from omegaconf import OmegaConf
from pydantic import BaseModel
from resources_servers.blackjack.app import BlackjackEnv  # noqa: TID251
from resources_servers.example_mcp_weather.app import ExampleMCPWeatherResourcesServer  # noqa: TID251
from resources_servers.example_multi_turn_gymnasium.app import ExampleMultiTurnEnv  # noqa: TID251
from resources_servers.example_session_state_mgmt.app import StatefulCounterResourcesServer  # noqa: TID251
from responses_api_agents.gymnasium_agent.app import GymnasiumAgent
from responses_api_agents.simple_agent.app import SimpleAgent


class City(BaseModel):
    city: str


class BreakingServer(SimpleResourcesServer):
    """An environment on NeMo Gym's base class whose tools break in every way that the class leaves open."""

    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()

        @app.post("/raises")
        async def raises() -> dict[str, str]:
            raise ValueError("no 'such' table")

        @app.post("/rejects")
        async def rejects(body: City) -> dict[str, str]:
            raise HTTPException(status_code=418, detail=f"no {body.city}")

        @app.post("/text")
        async def text() -> str:
            return 'a "text"'

        @app.post("/plain")
        async def plain() -> Response:
            return PlainTextResponse("plain text", status_code=503)

        @app.post("/counts")
        async def counts(request: Request) -> dict[str, int]:
            request.session["count"] = request.session.get("count", 0) + 1
            return {"count": request.session["count"]}

        return app

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=1.0)


def fastmcp_app() -> FastAPI:
    """An environment whose tools are a plain FastMCP server with sessions and event streams, at /mcp."""
    mcp = FastMCP("tools", stateless_http=False, json_response=False)

    @mcp.tool()
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @mcp.tool()
    async def fail(reason: str) -> str:
        """Fail for a reason."""
        raise ValueError(reason)

    app = FastAPI(lifespan=lambda _: mcp.session_manager.run())

    @app.post("/seed_session")
    async def seed_session() -> dict[str, Any]:
        return {}

    @app.post("/verify")
    async def verify(request: Request) -> dict[str, Any]:
        return {**await request.json(), "reward": 1.0}

    app.mount("/", mcp.streamable_http_app())
    return app


ENVIRONMENTS = {
    "breaking": BreakingServer,
    "counter": StatefulCounterResourcesServer,
    "weather": ExampleMCPWeatherResourcesServer,
    "blackjack": BlackjackEnv,
    "multi_turn": ExampleMultiTurnEnv,
}
AGENTS = {
    "breaking_agent": (SimpleAgent, "breaking"),
    "counter_agent": (SimpleAgent, "counter"),
    "multi_turn_agent": (GymnasiumAgent, "multi_turn"),
}


def main() -> None:
    sockets = {name: _bound() for name in [*ENVIRONMENTS, *AGENTS, "fastmcp"]}
    ports = {name: one.getsockname()[1] for name, one in sockets.items()}
    addresses = {name: {"resources_servers": {name: {"host": "127.0.0.1", "port": ports[name]}}} for name in ports}
    model = {"responses_api_models": {"model": {"host": "127.0.0.1", "port": int(sys.argv[1])}}}
    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=1),
        global_config_dict=OmegaConf.create({**addresses, "model": model}),
    )
    apps = {"fastmcp": fastmcp_app()}
    for name, kind in ENVIRONMENTS.items():
        config = kind.model_fields["config"].annotation
        apps[name] = _app(kind(config=config(**_config(name, ports)), server_client=client))
    for name, (kind, environment) in AGENTS.items():
        config = kind.model_fields["config"].annotation
        references = {
            "resources_server": {"type": "resources_servers", "name": environment},
            "model_server": {"type": "responses_api_models", "name": "model"},
        }
        apps[name] = _app(kind(config=config(**_config(name, ports), **references), server_client=client))
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    asyncio.run(_serve(apps, sockets, ports))


async def _serve(apps: dict[str, FastAPI], sockets: dict[str, socket.socket], ports: dict[str, int]) -> None:
    set_global_aiohttp_client(GlobalAIOHTTPAsyncClientConfig())
    servers = [uvicorn.Server(uvicorn.Config(app, log_level="warning")) for app in apps.values()]
    tasks = [
        asyncio.create_task(server.serve(sockets=[sockets[name]])) for name, server in zip(apps, servers, strict=True)
    ]
    while not all(server.started for server in servers):
        await asyncio.sleep(0.05)
    print(json.dumps(ports), flush=True)
    os.dup2(2, 1)  # the caller reads no further line, and NeMo Gym prints every exception
    await asyncio.gather(*tasks)


def _app(server: Any) -> FastAPI:
    app: FastAPI = server.setup_webserver()
    server.setup_exception_middleware(app)
    return app


def _config(name: str, ports: dict[str, int]) -> dict[str, Any]:
    return {"name": name, "host": "127.0.0.1", "port": ports[name], "entrypoint": "app.py"}


def _bound() -> socket.socket:
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    return one


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
