"""NeMo Gym 0.7's `single_agent_turn` environment server in front of a Rollyard run. Prints what it found as JSON.

Runs in .venv-nemo-gym07, without Rollyard. Arguments: the head's port, the names of agent and resources server, and a
file with rows.
"""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from environment_servers.single_agent_turn import app as single_agent_turn
from nemo_gym import global_config
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.failure_kinds import FAILURE_KINDS
from nemo_gym.server_utils import BaseServerConfig, ServerClient
from nemo_gym.single_agent_turn_types import SingleAgentTurnRequest
from nemo_gym.testing.session_conformance import check_resources_session_contract
from omegaconf import OmegaConf


def episode(index: int, row: dict[str, Any]) -> dict[str, Any]:
    task = {"task_id": {"taskset": "t", "task_id": str(index)}, "task_input": row}
    return {"episode_id": {"rollout_id": f"{index}-0"}, "task": task}


class Forwarded:
    """An app that passes each request on to a server, for checks that call an app in their own process."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = (await receive())["body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"] if name in (b"cookie",)}
        headers["content-type"] = "application/json"
        request = urllib.request.Request(self._url + scope["path"], body, headers, method="POST")
        try:
            with urllib.request.urlopen(request) as answer:
                status, found, cookies = answer.status, answer.read(), answer.headers.get_all("set-cookie") or []
        except urllib.error.HTTPError as error:
            status, found, cookies = error.code, error.read(), []
        pairs = [(b"set-cookie", cookie.encode()) for cookie in cookies]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": found})


async def main(port: int, agent: str, resources: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    global_config._GLOBAL_CONFIG_DICT = OmegaConf.create({"head_server": {"host": "127.0.0.1", "port": port}})
    client = ServerClient.load_from_global_config(BaseServerConfig(host="127.0.0.1", port=port))
    limits = {"max_concurrent_episodes": None, "queue_timeout_seconds": None}
    deadlines = {"default_episode_timeout_seconds": 300, "cleanup_timeout_seconds": 60}
    config = single_agent_turn.SingleAgentTurnEnvironmentServerConfig(
        **{"name": "environment_server", "host": "127.0.0.1", "port": 1, "entrypoint": "app.py", **limits, **deadlines},
        resources_server={"type": "resources_servers", "name": resources},
        agent_server={"type": "responses_api_agents", "name": agent},
        resources_tool_transports=["direct_http"],
    )
    server = single_agent_turn.SingleAgentTurnEnvironmentServer(config=config, server_client=client)
    answers = []
    for index, row in enumerate(rows):
        answer = await server.run_request(SingleAgentTurnRequest.model_validate(episode(index, row)))
        answers.append(answer.model_dump(mode="json"))
    task = {"episode_id": {"rollout_id": "9-0"}, "task_id": {"taskset": "t", "task_id": "9"}}
    seed = ResourcesSeedSessionRequest.model_validate({"resources_session_id": "checked", **task, "task_data": rows[0]})
    app: Any = Forwarded(client._resolve_base_url(resources))
    await asyncio.to_thread(check_resources_session_contract, app, seed, keeps_state=True)
    return {
        "rewards": [(answer["result"] or {}).get("reward") for answer in answers],
        "failures": [(answer["failure"] or {}).get("failure_reason") for answer in answers],
        "kinds": sorted(FAILURE_KINDS),
    }


if __name__ == "__main__":
    given = [json.loads(line) for line in Path(sys.argv[4]).read_text().splitlines()]
    print("found:", json.dumps(asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], given))))
