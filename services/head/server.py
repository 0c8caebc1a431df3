"""Head: the run's server registry over HTTP. Servers register with it, and clients fetch the directory."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from fastapi import Request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from rollyard.records.activity import Collection
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.run_types import Directory, Heartbeat, Registration, RunOrigin, ServerCode, ServerInstance
from rollyard.records.types import Json
from rollyard.services.config.nemo_gym import with_environment_servers
from rollyard.services.config.plugins import FAMILY_ALIASES
from rollyard.services.config.run_config import RunConfig
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.http.access import own_uid, peer_of
from rollyard.services.http.client import SECRET_HEADER
from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.openapi import Shape
from rollyard.services.server.settings import ServerSettings

_COLLECTION = ("folder", "file")
_GAUGES = {
    "rollouts": ("Rollouts of a collection: expected, measured, given_up, in_flight", "state"),
    "reward_mean": ("Mean reward of the measured rollouts",),
    "success_ratio": ("Share of the measured rollouts that succeeded",),
    "token_break_ratio": ("Share of later turns with a prefix mismatch in the token history",),
    "eta_seconds": ("Time until all rollouts are measured at the current rate",),
    "oldest_seconds": ("Age of the oldest rollout in flight",),
    "dataset_rollouts": ("Measured rollouts of one dataset of a mixture", "dataset"),
    "dataset_reward_mean": ("Mean reward of one dataset", "dataset"),
    "dataset_success_ratio": ("Share of a dataset's rollouts that succeeded", "dataset"),
}
"""Metrics of a collection: the end of the name, the help text, and further labels."""
MAX_COLLECTIONS, MAX_PARTS = 16, 1000
"""Maximum numbers of collections and of their parts to keep. The one that reported least recently is dropped first."""
_NEMO_GYM_NAMES = {name: alias for alias, name in FAMILY_ALIASES.items()}


class Head(Server):
    """Serves the registry, the status of collections, and the run's config in NeMo Gym's format."""

    def __init__(
        self,
        settings: ServerSettings,
        context: Context,
        registry: ServerRegistry,
        config: RunConfig,
        folder: Path | None = None,
    ) -> None:
        """`folder`: the working directory from which the run was started."""
        super().__init__(settings, context)
        self._folder = folder
        self.registry = registry
        self.address = (settings.host, settings.port)
        self._config = config
        self.route("/register", self._register, shape=Shape(Registration))
        self.route("/heartbeat", self._heartbeat, shape=Shape(Heartbeat, Directory))
        self._collections: dict[str, Collection] = {}
        self._parts: dict[str, Collection] = {}
        self.route("/collection", self._collection, shape=Shape(Collection))
        self.audit("/register", "/collection")
        self.measure(HeadMetrics(registry, lambda: list(self._collections.values())))
        self.allow_play("/directory")
        self.app.get("/collections")(self._list_collections)
        self.app.get("/prometheus_targets")(self._prometheus_targets)
        self.app.get("/directory")(self._directory)
        self.app.get("/origin")(self._origin)
        self.app.get("/server_code")(self._server_code)
        self.app.get("/server_instances")(self._server_instances)
        self.app.get("/global_config_dict_yaml")(self._global_config_dict_yaml)

    async def _register(self, call: RawRequest) -> bytes:
        """Register a server of the run, or update its readiness."""
        self._admit(call)
        call.is_act = self.registry.register(call.record(Registration))
        return b"{}"

    async def _heartbeat(self, call: RawRequest) -> bytes:
        """Store a server's heartbeat and return the directory."""
        self._admit(call)
        self.registry.record_heartbeat(call.record(Heartbeat))
        return self.registry.directory().model_dump_json().encode()

    async def _collection(self, call: RawRequest) -> bytes:
        """Store the status of a collection."""
        collection = call.record(Collection)
        known, most = (self._parts, MAX_PARTS) if collection.is_part else (self._collections, MAX_COLLECTIONS)
        before = known.pop(collection.output, None)
        state = collection.status.state
        call.is_act = before is None or before.status.state != state
        call.act_detail = {"output": collection.output, "state": state, "is_part": collection.is_part}
        known[collection.output] = collection
        if len(known) > most:
            del known[next(iter(known))]
        return b"{}"

    async def _list_collections(self) -> list[Collection]:
        """Return the current and past collections of this run, most recent first, and their parts."""
        return [*reversed(self._collections.values()), *self._parts.values()]

    async def _prometheus_targets(self, request: Request) -> list[Json]:
        """Return the servers' addresses for Prometheus's http_sd_configs; the head's is the Host header."""
        run = {"run": self.registry.run_id}
        if self.context.keys.tls is not None:
            run["__scheme__"] = "https"
        head_address = request.headers.get("host") or "{}:{}".format(*self.address)
        head = {"targets": [head_address], "labels": {"name": "head", "family": "head", **run}}
        servers = [
            {
                "targets": [urlsplit(one.url).netloc],
                "labels": {"name": one.server_name, "family": one.server_type, **run},
            }
            for one in self.registry.instances()
            if one.url is not None and not one.origin  # other servers have no metrics in this form
        ]
        return [head, *servers]

    async def _directory(self, request: Request) -> Directory:
        """Return the directory of the run's servers; without their settings and code to callers with the play token."""
        directory = self.registry.directory()
        if self.is_in_control(request.headers.get("authorization")):
            return directory
        return directory.model_copy(update={"settings": {}, "code": {}, "changed_code": {}})

    async def _origin(self, request: Request) -> RunOrigin:
        """Return who started the run, and in which folder. Only that user may read it."""
        connected, uid = peer_of(request.scope)
        if connected and uid not in (own_uid(), 0) and not self.context.keys.token:
            raise Failure(FailureKind.FORBIDDEN, "only the user who started this run may read its folder")
        return RunOrigin(run_id=self.registry.run_id, folder=str(self._folder or ""), uid=own_uid(), pid=os.getpid())

    async def _server_code(self) -> dict[str, ServerCode]:
        """Return the digests of the code that each server has loaded, if it reports them."""
        return self.registry.code

    async def _server_instances(self) -> list[ServerInstance]:
        """Return every instance of the run."""
        return self.registry.instances()

    async def _global_config_dict_yaml(self) -> str:
        """Return the merged config as YAML with all addresses, NeMo Gym's family names, and no secrets.

        Its collector reaches an agent only through an environment server, which an agent of Rollyard is itself.
        """
        tree = {
            name: {_NEMO_GYM_NAMES.get(key, key): value for key, value in node.items()}
            if isinstance(node, dict)
            else node
            for name, node in self._config.redacted().items()
        }
        tree["head_server"] = {"host": self.address[0], "port": self.address[1]}
        for instance in self.registry.instances():
            address: Json = {"host": instance.host, "port": instance.port}
            if instance.url and instance.url.startswith("https://"):
                address["url"] = instance.url  # NeMo Gym's own clients know only plain HTTP
            for node in tree[instance.server_name].values() if instance.url else ():
                if isinstance(node, dict) and instance.name in node:
                    node[instance.name] = {**(node[instance.name] or {}), **address}
        tree = with_environment_servers(tree)
        return yaml.safe_dump(escape_references(tree), sort_keys=False, allow_unicode=True)

    def _admit(self, call: RawRequest) -> None:
        secret = (call.header(SECRET_HEADER.encode()) or "").encode()
        if not hmac.compare_digest(secret, self.context.keys.secret.encode()):
            raise Failure(FailureKind.UNAUTHORIZED, "only servers of this run may register or send heartbeats")


def escape_references(value: Any) -> Any:
    """Escape each `${` in the resolved tree, so that OmegaConf does not parse it as a reference."""
    if isinstance(value, dict):
        return {key: escape_references(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escape_references(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value


class HeadMetrics:
    def __init__(self, registry: ServerRegistry, collections: Callable[[], Sequence[Collection]]) -> None:
        self._registry = registry
        self._collections = collections

    def collect(self) -> Iterable[Metric]:
        yield from self._server_metrics()
        yield from self._collection_metrics()

    def _server_metrics(self) -> Iterator[Metric]:
        requested = GaugeMetricFamily("rollyard_instances", "Instances that the config requests", labels=["server"])
        ready = GaugeMetricFamily(
            "rollyard_instances_ready", "Instances that are ready and send heartbeats", labels=["server"]
        )
        restarts = CounterMetricFamily("rollyard_restarts", "Restarts of instances that died", labels=["server"])
        ready_servers = [instance.server_name for instance in self._registry.instances() if instance.ready]
        for server, replicas in self._registry.replicas.items():
            requested.add_metric([server], replicas)
            ready.add_metric([server], ready_servers.count(server))
            restarts.add_metric([server], self._registry.restarts.get(server, 0))
        yield from (requested, ready, restarts)

    def _collection_metrics(self) -> Iterator[Metric]:
        found = {
            name: GaugeMetricFamily(f"rollyard_collection_{name}", help_text, labels=[*_COLLECTION, *extra])
            for name, (help_text, *extra) in _GAUGES.items()
        }
        failed = CounterMetricFamily(
            "rollyard_collection_failed_attempts", "Failed attempts by kind", labels=[*_COLLECTION, "kind"]
        )
        for collection in self._collections():
            # The file name alone is not unique: two runs may both write a rollouts.jsonl, and series must not repeat.
            folder, _, file = collection.output.rpartition("/")
            path, status = (folder, file), collection.status
            counts = (status.expected, status.measured, status.failed, status.in_flight)
            for state, count in zip(("expected", "measured", "given_up", "in_flight"), counts, strict=True):
                found["rollouts"].add_metric([*path, state], count)
            found["oldest_seconds"].add_metric([*path], status.oldest_s)
            if status.mean_reward is not None:
                found["reward_mean"].add_metric([*path], status.mean_reward)
            if status.successes is not None and status.measured:
                found["success_ratio"].add_metric([*path], status.successes / status.measured)
            if status.token_turns:
                found["token_break_ratio"].add_metric([*path], status.token_breaks / status.token_turns)
            if status.state == "running" and status.eta_s is not None:
                found["eta_seconds"].add_metric([*path], status.eta_s)
            for name, part in status.datasets.items():
                found["dataset_rollouts"].add_metric([*path, name], part.measured)
                found["dataset_reward_mean"].add_metric([*path, name], part.mean_reward)
                if part.successes is not None and part.measured:
                    found["dataset_success_ratio"].add_metric([*path, name], part.successes / part.measured)
            for kind, count in status.failures.items():
                failed.add_metric([*path, kind], count)
        yield from (*found.values(), failed)
