from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from omegaconf import OmegaConf

from rollyard.records.activity import Collection
from rollyard.records.run_types import Keys, Registration
from rollyard.records.types import Json
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.head.server import Head
from rollyard.services.http.client import SECRET_HEADER
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.server.app import Context
from rollyard.services.server.settings import ServerSettings
from tests.support.fixtures import KEYS, load_text, make_client, make_folder, send, server_yaml

NEMO_KEYS = {"process_name", "server_type", "name", "dir_path", "entrypoint", "host", "port", "pid", "config_path"}
NEMO_KEYS |= {"url", "status", "start_time", "uptime_seconds"}
BASE = "http://head:1"


class HeadHarness:
    """A head with one environment and one agent, without a socket."""

    def __init__(self, root: Path, keys: Keys = KEYS, title: str = "", family: str = "responses_api_agents") -> None:
        self.environment_folder, self.agent_folder = make_folder(root), make_folder(root, "agents")
        peer = f"{{peer: {{type: resources_servers, name: environment}}, title: '{title}'}}"
        text = "policy_api_key: sk-1234\nclient: {default_headers: {x-api-key: sk-1234}, url: 'http://a:sk-1234@h'}\n"
        text += server_yaml(self.environment_folder, "{api_key: '${policy_api_key}', speed: 3}")
        config = load_text(root, text + server_yaml(self.agent_folder, peer, "agent", family))
        self.transport = LocalTransport(HttpTransport())
        self.registry = registry = ServerRegistry(keys.run_id, config.servers, config.identity())
        context = Context("head", keys, make_client({}, self.transport))
        self.transport.mount(BASE, Head(ServerSettings(port=11000), context, registry, config))
        self.admission = {SECRET_HEADER: keys.secret}
        if keys.token:
            self.admission["authorization"] = f"Bearer {keys.token}"

    async def get(self, path: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        return await send(self.transport, BASE + path, b"", "GET", headers)

    async def read(self, path: str) -> Any:
        return orjson.loads((await self.get(path)).body)

    async def register(self, name: str = "environment", port: int = 7001, **more: Any) -> HttpResponse:
        url = f"http://127.0.0.1:{port}"
        self.registry.expect(f"{name}#1")
        record = Registration(name=name, instance=f"{name}#1", url=url, pid=42, ready=True, **more)
        return await send(self.transport, BASE + "/register", record.model_dump(), headers=self.admission)


@pytest.fixture
def head(tmp_path: Path) -> HeadHarness:
    return HeadHarness(tmp_path)


@pytest.mark.parametrize("path", ["/register", "/heartbeat"])
@pytest.mark.parametrize("headers", [{}, {SECRET_HEADER: ""}, {SECRET_HEADER: "guess"}], ids=str)
async def test_a_server_without_the_secret_is_rejected(head: HeadHarness, path: str, headers: dict[str, str]) -> None:
    record = Registration(name="environment", instance="environment#1", url="http://stranger", pid=1, ready=True)
    answer = await send(head.transport, BASE + path, record.model_dump(), headers=headers)
    problem = orjson.loads(answer.body)
    assert (answer.status, problem["type"], problem["server"]) == (401, "urn:rollyard:unauthorized", "head")
    assert (await head.read("/directory"))["servers"]["environment"] == []


async def test_an_invalid_message_is_a_400_problem(head: HeadHarness) -> None:
    messages = (("/register", {"name": "environment"}), ("/collection", {"output": "/a.jsonl", "status": {}}))
    for path, message in messages:
        answer = await send(head.transport, BASE + path, message, headers=head.admission)
        assert answer.status == 400 and orjson.loads(answer.body)["server"] == "head"
    assert await head.read("/collections") == []


async def test_a_heartbeat_is_answered_with_the_directory(head: HeadHarness) -> None:
    await head.register()
    heartbeat = {"instance": "environment#1", "requests": 1, "in_flight": 0, "sessions": 0}
    answer = await send(head.transport, BASE + "/heartbeat", heartbeat, headers=head.admission)
    assert orjson.loads(answer.body) == await head.read("/directory")


async def test_server_instances_have_nemo_gyms_keys(head: HeadHarness) -> None:
    await head.register()
    instance = next(entry for entry in await head.read("/server_instances") if entry["pid"])
    assert set(instance) >= NEMO_KEYS
    address = [instance[key] for key in ("host", "port", "pid", "status")]
    assert address == ["127.0.0.1", 7001, 42, "success"]
    assert (instance["server_type"], instance["name"]) == ("resources_servers", head.environment_folder)


@pytest.mark.parametrize("family", ["agents", "responses_api_agents"])
async def test_nemo_gyms_client_reads_each_servers_address_and_settings_in_the_config(
    tmp_path: Path, family: str
) -> None:
    head = HeadHarness(tmp_path, family=family, title="costs \\${x}")
    await head.register()
    await head.register("agent", 7002)
    text = await head.read("/global_config_dict_yaml")
    assert isinstance(text, str)
    tree: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    environment_block = tree["environment"]["resources_servers"][head.environment_folder]
    agent_block = tree["agent"]["responses_api_agents"][head.agent_folder]
    assert (environment_block["host"], environment_block["port"], environment_block["speed"]) == ("127.0.0.1", 7001, 3)
    assert (agent_block["host"], agent_block["port"], agent_block["title"]) == ("127.0.0.1", 7002, "costs ${x}")
    assert tree["head_server"] == {"host": "127.0.0.1", "port": 11000}
    relay = tree["agent_environment_server"]["environment_servers"]["legacy_agent"]
    assert (relay["agent_server"]["name"], relay["host"], relay["port"]) == ("agent", "127.0.0.1", 7002)


PATHS = ["/global_config_dict_yaml", "/server_instances", "/directory", "/health", "/ready", "/metrics"]


async def test_no_endpoint_serves_a_secret(head: HeadHarness) -> None:
    await head.register()
    for path in PATHS:
        body = (await head.get(path)).body
        assert b"sk-1234" not in body and KEYS.secret.encode() not in body, path


async def test_every_endpoint_requires_the_run_token_when_set_and_the_secret_does_not_replace_it(
    tmp_path: Path,
) -> None:
    head = HeadHarness(tmp_path, Keys(run_id="r1", secret="s", token="t0ken"))
    for path in ({*PATHS} - {"/ready"}) | {"/openapi.json", "/nowhere"}:
        assert (await head.get(path)).status == 401, path
        assert (await head.get(path, {"authorization": "Bearer wrong"})).status == 401, path
        assert (await head.get(path, {"authorization": "Bearer t0ken"})).status != 401, path
    head.admission.pop("authorization")
    assert (await head.register()).status == 401


def collection(output: str, measured: int = 1) -> Json:
    status = CollectionProgress(10).status("running").model_copy(update={"measured": measured})
    return Collection(output=output, status=status, failures=[]).model_dump(by_alias=True)


async def test_the_sixteen_most_recent_collections_are_listed_once(head: HeadHarness) -> None:
    for number, measured in (*((number, 1) for number in range(40)), (30, 2)):
        await send(head.transport, BASE + "/collection", collection(f"/{number}.jsonl", measured))
    listed = [(entry["output"], entry["status"]["measured"]) for entry in await head.read("/collections")]
    assert listed == [("/30.jsonl", 2), *((f"/{number}.jsonl", 1) for number in range(39, 23, -1) if number != 30)]


async def test_prometheus_targets_list_every_server_and_the_head_under_the_requested_host(head: HeadHarness) -> None:
    await head.register()
    answer = await head.get("/prometheus_targets", {"host": "requested:1"})
    head_target, environment_target = orjson.loads(answer.body)
    assert head_target == {"targets": ["requested:1"], "labels": {"name": "head", "family": "head", "run": "r1"}}
    assert environment_target["targets"] == ["127.0.0.1:7001"]
    assert environment_target["labels"] == {"name": "environment", "family": "resources_servers", "run": "r1"}


async def test_metrics_count_ready_instances_and_restarts(head: HeadHarness) -> None:
    await head.register()
    head.registry.restarts["agent"] = 3
    text = (await head.get("/metrics")).body.decode()
    assert 'rollyard_instances_ready{server="environment"} 1.0' in text
    assert 'rollyard_instances{server="agent"} 1.0' in text
    assert 'rollyard_instances_ready{server="agent"} 0.0' in text
    assert 'rollyard_restarts_total{server="agent"} 3.0' in text
