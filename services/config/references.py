"""Finds and checks the references to other servers in a server's settings."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import ServerRef
from rollyard.services.config.run_config import ServerSpec
from rollyard.services.config.server_folders import ALIASES

_USUAL_FAMILY = {"resources_server": "resources_servers", "model_server": "responses_api_models"}


def servers_of(spec: ServerSpec, servers: Container[str]) -> list[str]:
    """Return the names of the servers that a server's settings refer to, in any notation that the settings accept."""
    parsed = [name for _, name, _ in _references(spec) if name in servers]
    return [*dict.fromkeys(servers_named(spec.raw, servers) + parsed)]


def servers_named(settings: Any, servers: Container[str]) -> list[str]:
    """Return the names of the servers that settings refer to with {type: ..., name: ...}, at any nesting depth."""
    if isinstance(settings, list):
        return [name for item in settings for name in servers_named(item, servers)]
    if not isinstance(settings, dict):
        return []
    name = settings.get("name")
    own = [name] if settings.keys() <= {"type", "name"} and isinstance(name, str) and name in servers else []
    return [*own, *(nested_key for item in settings.values() for nested_key in servers_named(item, servers))]


def check_references(servers: Sequence[ServerSpec]) -> None:
    """Raise OperatorError if a server refers to one that the run does not have, or that belongs to the wrong family."""
    families = {spec.name: spec.family for spec in servers}
    for spec in servers:
        for key, name, kind in _references(spec):
            if name not in families:
                known = ", ".join(sorted(families))
                hint = did_you_mean(name, families)
                reference = f"{spec.name}.{key} refers to {name!r}"
                raise OperatorError(f"{reference}, which is not a server in this run{hint} (available: {known})")
            expected = ALIASES.get(kind, kind) or _USUAL_FAMILY.get(key.rpartition(".")[2])
            if expected is not None and families[name] != expected:
                raise OperatorError(
                    f"{spec.name}.{key} refers to {name!r}, which belongs to {families[name]}; expected {expected}"
                )


def _references(spec: ServerSpec) -> Iterator[tuple[str, str, str]]:
    """Yield the setting, server name and type of each reference.

    For an isolated server and for a foreign program, only the YAML is available.
    """
    yield from _references_in(spec.settings)
    for key, value in spec.raw.items() if spec.isolated or spec.program else ():
        if isinstance(value, dict) and set(value) == {"type", "name"} and value["name"] is not None:
            yield key, str(value["name"]), str(value["type"])


def _references_in(settings: BaseModel, path: str = "") -> Iterator[tuple[str, str, str]]:
    for key, value in settings:
        if isinstance(value, ServerRef):
            yield path + key, value.name, value.type
        elif isinstance(value, BaseModel):
            yield from _references_in(value, f"{path}{key}.")
