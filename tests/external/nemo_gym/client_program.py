"""NeMo Gym's own classes as clients of a Rollyard run. Prints what they found as JSON.

Runs in .venv-nemo-gym, without Rollyard. Arguments: the head's port, and a file with rows.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from nemo_gym import global_config
from nemo_gym.config_types import AggregateMetrics
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_status import StatusCommand
from nemo_gym.server_utils import BaseServerConfig, ServerClient
from omegaconf import OmegaConf


async def main(port: int, rows_file: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in rows_file.read_text().splitlines()]
    head = BaseServerConfig(host="127.0.0.1", port=port)
    # `gym env status` reads the head's address from the config that its command line has merged.
    global_config._GLOBAL_CONFIG_DICT = OmegaConf.create({"head_server": {"host": "127.0.0.1", "port": port}})
    client = ServerClient.load_from_global_config(head)
    config: Any = OmegaConf.to_container(client.global_config_dict)
    found: dict[str, Any] = {
        "agents": [name for name, node in config.items() if "responses_api_agents" in node],
        "healthy": [server.name for server in StatusCommand().discover_servers() if server.status == "success"],
    }
    results = []
    for running in RolloutCollectionHelper().run_examples(rows, head_server_config=head):
        row, result = await running
        results.append({**result, "_ng_task_index": row["_ng_task_index"], "_ng_rollout_index": 0})
    results.sort(key=lambda result: result["_ng_task_index"])
    found["failures"] = [result.get("_ng_failure_class") for result in results]
    measured = [result for result in results if "_ng_failure_class" not in result]
    found["rewards"] = [result["reward"] for result in measured]
    body = {**rows[0], "response": measured[0]["response"]}
    verified = await client.post("gsm8k_resources_server", "/verify", json=body)
    found["verified"] = (await verified.json())["reward"]
    found["mode"] = await (await client.get("gsm8k_resources_server", "/reverify_mode")).json()
    aggregated = await client.post("gsm8k_agent", "/aggregate_metrics", json={"verify_responses": measured})
    metrics = AggregateMetrics.model_validate(await aggregated.json())
    found["metrics"] = metrics.agent_metrics
    found["groups"] = [group["_ng_task_index"] for group in metrics.group_level_metrics]
    return found


if __name__ == "__main__":
    print("found:", json.dumps(asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))))
