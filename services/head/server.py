"""Head: the run's front desk. Servers register here, everybody else asks here where they are."""

from __future__ import annotations

import hmac
import os
import time
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import yaml
from fastapi import Request
from pydantic import BaseModel, ValidationError

from rollyard.services.config.load import RunConfig
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.head.activity import Collection
from rollyard.services.head.metrics import HeadMetrics
from rollyard.services.head.registry import ServerRegistry
from rollyard.services.http.access.peer_user import own_uid, peer_of
from rollyard.services.http.client import SECRET_HEADER
from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Directory, Heartbeat, Json, Registration, RunOrigin, ServerCode, ServerInstance

M = TypeVar("M", bound=BaseModel)

COLLECTIONS = 16
"""Remembered of those that ran on the stack; the one that was silent for longest is forgotten first."""
SILENT_S = 10.0
"""A collection that reported nothing for so long counts as ended."""


class Head(Server):
    """The roster behind HTTP, and the run's config in NeMo Gym's format."""

    def __init__(
        self,
        settings: ServerSettings,
        context: Context,
        registry: ServerRegistry,
        config: RunConfig,
        folder: Path | None = None,
    ) -> None:
        """`folder`: where the run was started."""
        super().__init__(settings, context)
        self._folder = folder
        self.registry = registry
        self.address = (settings.host, settings.port)
        self._config = config
        self.route("/register", self._register)
        self.route("/heartbeat", self._heartbeat)
        self._collections: dict[str, Collection] = {}
        self._heard: dict[str, float] = {}
        """Output of a collection -> when it last reported, by this process's clock."""
        registry.withhold_while(self._is_unknown)
        self.route("/collection", self._told)
        self.measure(HeadMetrics(registry, lambda: list(self._collections.values())))
        self.app.get("/collections")(self._list_collections)
        self.app.get("/prometheus_targets")(self._prometheus_targets)
        self.app.get("/directory")(self._directory)
        self.app.get("/origin")(self._origin)
        self.app.get("/server_code")(self._server_code)
        self.app.get("/server_instances")(self._server_instances)
        self.app.get("/global_config_dict_yaml")(self._global_config_dict_yaml)

    async def _register(self, call: RawRequest) -> bytes:
        """A server of the run says where it listens, later that it is ready."""
        self._admit(call)
        self.registry.register(_read(Registration, call))
        return b"{}"

    async def _heartbeat(self, call: RawRequest) -> bytes:
        """A server of the run is alive; the answer is the directory."""
        self._admit(call)
        self.registry.record_heartbeat(_read(Heartbeat, call))
        return self.registry.directory().model_dump_json().encode()

    async def _told(self, call: RawRequest) -> bytes:
        """A collection on this stack tells how it goes."""
        told = _read(Collection, call)
        self._collections.pop(told.output, None)
        self._collections[told.output] = told
        self._heard[told.output] = time.monotonic()
        if len(self._collections) > COLLECTIONS:
            oldest = next(iter(self._collections))
            del self._collections[oldest], self._heard[oldest]
        return b"{}"

    def _is_unknown(self, server: str, digest: str) -> bool:
        """Whether a running collection would mark rows of this code as rows of another."""
        now = time.monotonic()
        return any(
            one.status.state == "running"
            and now - self._heard[output] < SILENT_S
            and one.code.get(server, digest) != digest
            for output, one in self._collections.items()
        )

    async def _list_collections(self) -> list[Collection]:
        """The collections that run or have run on this stack, the latest first."""
        return list(reversed(self._collections.values()))

    async def _prometheus_targets(self, request: Request) -> list[Json]:
        """Every server's address in the format of Prometheus' http_sd_configs, the head as the asker reached it."""
        run = {"run": self.registry.run_id}
        reached = request.headers.get("host") or "{}:{}".format(*self.address)
        head = {"targets": [reached], "labels": {"name": "head", "family": "head", **run}}
        servers = [
            {
                "targets": [urlsplit(one.url).netloc],
                "labels": {"name": one.server_name, "family": one.server_type, **run},
            }
            for one in self.registry.instances()
            if one.url is not None
        ]
        return [head, *servers]

    async def _directory(self) -> Directory:
        """Base URLs of the ready instances of every server."""
        return self.registry.directory()

    async def _origin(self, request: Request) -> RunOrigin:
        """Who started the run, and in which folder: answered to that user only."""
        connected, uid = peer_of(request.scope)
        if connected and uid not in (own_uid(), 0) and not self.context.keys.token:
            raise Failure(FailureKind.FORBIDDEN, "only the user who started this run may know its folder")
        return RunOrigin(run_id=self.registry.run_id, folder=str(self._folder or ""), uid=own_uid(), pid=os.getpid())

    async def _server_code(self) -> dict[str, ServerCode]:
        """The code that every server of the run has loaded, where it reports it."""
        return self.registry.code

    async def _server_instances(self) -> list[ServerInstance]:
        """Every instance of the run."""
        return self.registry.instances()

    async def _global_config_dict_yaml(self) -> str:
        """The merged config as YAML, with every server's host and port, without secrets."""
        tree = self._config.redacted()
        tree["head_server"] = {"host": self.address[0], "port": self.address[1]}
        for instance in self.registry.instances():
            for node in tree[instance.server_name].values() if instance.url else ():
                if isinstance(node, dict) and instance.name in node:
                    node[instance.name] = {**(node[instance.name] or {}), "host": instance.host, "port": instance.port}
        return yaml.safe_dump(_literal(tree), sort_keys=False, allow_unicode=True)

    def _admit(self, call: RawRequest) -> None:
        shown = (call.header(SECRET_HEADER.encode()) or "").encode()
        if not hmac.compare_digest(shown, self.context.keys.secret.encode()):
            raise Failure(FailureKind.UNAUTHORIZED, "only servers that this run started may register")


def _read(model: type[M], call: RawRequest) -> M:
    try:
        return model.model_validate_json(call.body)
    except ValidationError as error:
        raise Failure(FailureKind.BAD_REQUEST, str(error)) from error


def _literal(value: Any) -> Any:
    """The resolved tree for a reader that parses it with OmegaConf: a `${` that is left is text, not a reference."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
