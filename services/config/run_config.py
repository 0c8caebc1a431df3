"""RunConfig: the validated servers of a run."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollyard.records.run_types import Keys, Launch
from rollyard.records.types import Json
from rollyard.services.server.settings import ServerSettings, is_secret, redacted, without_credentials, without_secrets


@dataclass(frozen=True)
class ForeignProgram:
    """How to start a server of NeMo Gym, which runs as a program of its own, in its own interpreter."""

    root: Path
    """The folder that contains its family's folder: site-packages, or the root of a checkout."""
    python: Path | None
    """The interpreter. With `install`, that from which the environment is made; None: uv chooses one."""
    install: bool = False
    """Install the packages that the server's folder requires into an environment of its own, with uv."""


@dataclass(frozen=True)
class ServerSpec:
    """One named server of a run, with validated settings."""

    name: str
    family: str
    implementation: str
    folder: Path
    settings: ServerSettings
    raw: Json = field(repr=False)
    """The resolved settings from YAML, which are passed to the server's process."""
    isolated: bool
    """The server has its own virtual environment; only the base settings were validated in this process."""
    external_url: str | None = None
    """Base URL of a server that runs elsewhere: it is neither started nor stopped, only watched."""
    program: ForeignProgram | None = None
    """Set for a server of NeMo Gym. Its settings are checked by the server itself."""
    auto_replicas: int | None = None
    """The number of processes that `replicas: auto` stands for; None until it is chosen."""

    @property
    def is_auto(self) -> bool:
        return self.settings.replicas == "auto"

    @property
    def replicas(self) -> int:
        """Number of processes."""
        chosen = self.settings.replicas
        return chosen if chosen != "auto" else self.auto_replicas or 1

    @property
    def is_foreign(self) -> bool:
        """Whether the server does not use Rollyard's own protocol between servers: no run id, no heartbeats."""
        return self.external_url is not None or self.program is not None

    @property
    def origin(self) -> str:
        """Where the server runs, for status displays; empty for Rollyard's own servers."""
        if self.external_url is not None:
            return f"external, {without_credentials(self.external_url)}"
        if self.program is None:
            return ""
        return f"NeMo Gym, {'installed by uv' if self.program.install else self.program.python}"

    def launch(self, instance: str, keys: Keys, head_url: str, **more: Any) -> Launch:
        """Return the launch message of a process of this server. `more`: further fields, such as other settings."""
        fixed = {"name": self.name, "family": self.family, "implementation": self.implementation}
        where = {"folder": str(self.folder), "settings": self.raw, "keys": keys, "head_url": head_url, "parent_pid": 0}
        return Launch(**{**fixed, **where, "instance": instance, **more})

    def identity_settings(self) -> Json:
        """Return the configured settings that affect rollouts. They are parsed, so `10` and `"10"` can be equal."""
        parsed = self.settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {
            key: redacted(parsed.get(key, value))
            for key, value in self.raw.items()
            if key not in self.settings.NOT_IDENTITY and not is_secret(key)
        }


@dataclass(frozen=True)
class RunConfig:
    """All servers of a run and the merged config tree that defines them."""

    servers: tuple[ServerSpec, ...]
    tree: Json = field(repr=False)
    """The resolved tree, including secrets. Never print it; use `redacted`."""
    notes: tuple[str, ...] = ()
    """How entries of other frameworks were read: lines for the operator."""

    def redacted(self) -> Json:
        shown: Json = without_secrets(self.tree)
        return shown

    def identity(self) -> Json:
        """Return each server's settings that affect rollouts, without addresses, secrets and catalogue entries."""
        identity: Json = {
            spec.name: {"implementation": f"{spec.family}/{spec.implementation}", **spec.identity_settings()}
            for spec in self.servers
        }
        shown: Json = without_secrets(identity, of=self.tree)
        return shown


def servers_named(settings: Any, servers: Container[str]) -> list[str]:
    """Return the names of the servers that settings refer to with {type: ..., name: ...}, at any nesting depth."""
    if isinstance(settings, list):
        return [name for item in settings for name in servers_named(item, servers)]
    if not isinstance(settings, dict):
        return []
    name = settings.get("name")
    own = [name] if settings.keys() <= {"type", "name"} and isinstance(name, str) and name in servers else []
    return [*own, *(named for item in settings.values() for named in servers_named(item, servers))]
