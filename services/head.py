"""Head: the run's front desk. Servers register here, everybody else asks here where they are."""

from __future__ import annotations

import hmac
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from services.call import Call
from services.client import SECRET_HEADER
from services.config import RunConfig
from services.errors import Failure, FailureKind
from services.roster import Roster
from services.server import Context, Server
from services.settings import ServerSettings
from services.types import Directory, Heartbeat, Registration, ServerInstance

M = TypeVar("M", bound=BaseModel)


class Head(Server):
    """The roster behind HTTP, and the run's config in NeMo Gym's format."""

    def __init__(self, settings: ServerSettings, context: Context, roster: Roster, config: RunConfig) -> None:
        super().__init__(settings, context)
        self.roster = roster
        self.address = (settings.host, settings.port)
        self._config = config
        self.route("/register", self._register)
        self.route("/heartbeat", self._heartbeat)
        self.app.get("/directory")(self._directory)
        self.app.get("/server_instances")(self._server_instances)
        self.app.get("/global_config_dict_yaml")(self._global_config_dict_yaml)

    async def _register(self, call: Call) -> bytes:
        """A server of the run says where it listens, later that it is ready."""
        self._admit(call)
        self.roster.register(_read(Registration, call))
        return b"{}"

    async def _heartbeat(self, call: Call) -> bytes:
        """A server of the run is alive; the answer is the directory."""
        self._admit(call)
        self.roster.beat(_read(Heartbeat, call))
        return self.roster.directory().model_dump_json().encode()

    async def _directory(self) -> Directory:
        """Base URLs of the ready instances of every server."""
        return self.roster.directory()

    async def _server_instances(self) -> list[ServerInstance]:
        """Every instance of the run."""
        return self.roster.instances()

    async def _global_config_dict_yaml(self) -> str:
        """The merged config as YAML, with every server's host and port, without secrets."""
        tree = self._config.redacted()
        tree["head_server"] = {"host": self.address[0], "port": self.address[1]}
        for instance in self.roster.instances():
            for node in tree[instance.server_name].values() if instance.url else ():
                if isinstance(node, dict) and instance.name in node:
                    node[instance.name] = {**(node[instance.name] or {}), "host": instance.host, "port": instance.port}
        return yaml.safe_dump(_literal(tree), sort_keys=False, allow_unicode=True)

    def _admit(self, call: Call) -> None:
        shown = (call.header(SECRET_HEADER.encode()) or "").encode()
        if not hmac.compare_digest(shown, self.context.keys.secret.encode()):
            raise Failure(FailureKind.UNAUTHORIZED, "only servers that this run started may register")


def _read(model: type[M], call: Call) -> M:
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
