"""Merges YAML files and overrides into typed settings and checks them before anything starts.

Later sources take precedence: the files of `config_paths` from left to right, then `env.yaml` in the working directory,
then the command line.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)
from pydantic import BaseModel
from yaml import MarkedYAMLError, YAMLError

from rollyard.services.config.overrides import Override, apply
from rollyard.services.config.plugins import ALIASES, FAMILIES, find_folder, load_server
from rollyard.services.config.server_code.file_digest import file_digest
from rollyard.services.config.venv import needs_isolation
from rollyard.services.errors import OperatorError, did_you_mean
from rollyard.services.io.search_path import find_file
from rollyard.services.server.settings import ServerSettings, is_secret, parse_settings, redacted, without_secrets
from rollyard.services.types import Json, ServerRef

_PLAIN_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_USUAL_FAMILY = {"resources_server": "resources_servers", "model_server": "responses_api_models"}


@dataclass(frozen=True)
class ServerSpec:
    """One named server of a run, with validated settings."""

    name: str
    family: str
    implementation: str
    folder: Path
    settings: ServerSettings
    raw: Json = field(repr=False)
    """The resolved settings from YAML, which the server's process receives."""
    isolated: bool
    """The server has its own virtual environment; only the base settings were validated here."""

    def identity_settings(self) -> Json:
        """Return the settings of the config that affect rollouts. They are parsed, so `10` and `"10"` may be equal."""
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
    files: Mapping[Path, str] = field(default_factory=dict, repr=False)
    """Digests of the YAML files at the time they were read; env.yaml has one even if it is absent."""

    def redacted(self) -> Json:
        """Return the tree with every secret replaced by `***`."""
        shown: Json = without_secrets(self.tree)
        return shown

    def identity(self) -> Json:
        """Return every server's settings that affect rollouts: no addresses, secrets or catalogue entries."""
        return {
            spec.name: {"implementation": f"{spec.family}/{spec.implementation}", **spec.identity_settings()}
            for spec in self.servers
        }


def load(
    config_paths: Sequence[str | Mapping[str, Any]],
    overrides: Sequence[Override],
    roots: Sequence[Path],
    environ: Mapping[str, str],
    *,
    options: Iterable[str] = (),
) -> RunConfig:
    """Merge, resolve and validate the configs. Raises OperatorError.

    `config_paths`: file names, or mappings with the content of a file.
    `options`: names of the command's options, suggested when an unknown key resembles one.
    """
    if not config_paths:
        raise OperatorError("no config given; expected '+config_paths=[a.yaml,b.yaml]'")
    tree = OmegaConf.create({})
    env_file = roots[0] / "env.yaml"
    given = [path if isinstance(path, Mapping) else _find_file(path, roots) for path in config_paths]
    files = {path.absolute(): file_digest(path) for path in (*given, env_file) if isinstance(path, Path)}
    for path in given:
        tree = _merge(tree, _read_yaml(path) if isinstance(path, Path) else OmegaConf.create(dict(path)))
    if env_file.is_file():
        tree = _merge(tree, _read_yaml(env_file))
    _check_top_level_keys(tree, overrides, options)
    apply(tree, overrides)
    _fill_from_environment(tree, environ)
    resolved = _resolve(tree)
    servers = tuple(_servers(resolved, roots))
    if not servers:
        expected = f"a name with {' / '.join(FAMILIES)} below it"
        raise OperatorError(
            f"the configs define no server (found keys: {', '.join(resolved) or 'none'}); expected {expected}"
        )
    _check_references(servers)
    return RunConfig(servers, resolved, files)


def servers_of(spec: ServerSpec, servers: Container[str]) -> list[str]:
    """Return the servers that a server's settings refer to, in any form that the settings accept."""
    parsed = [name for _, name, _ in _references(spec) if name in servers]
    return [*dict.fromkeys(servers_named(spec.raw, servers) + parsed)]


def servers_named(settings: Any, servers: Container[str]) -> list[str]:
    """Return the servers that settings refer to ({type: ..., name: ...}), at any depth."""
    if isinstance(settings, list):
        return [name for item in settings for name in servers_named(item, servers)]
    if not isinstance(settings, dict):
        return []
    name = settings.get("name")
    own = [name] if settings.keys() <= {"type", "name"} and isinstance(name, str) and name in servers else []
    return [*own, *(nested_key for item in settings.values() for nested_key in servers_named(item, servers))]


def _find_file(path: str, roots: Sequence[Path]) -> Path:
    if found := find_file(path, roots):
        return found
    if any((root / path).is_dir() for root in roots):
        raise OperatorError(f"{path!r} is a folder; expected a config file in it, such as configs/sokoban_builtin.yaml")
    known = [str(found.relative_to(root)) for root in roots for found in _known_configs(root)]
    searched = ", ".join(str(root) for root in roots)
    raise OperatorError(f"config file {path!r} not found{did_you_mean(path, known)} (looked in {searched})")


def _known_configs(root: Path) -> Iterator[Path]:
    yield from (root / "configs").glob("*.yaml")
    for family in (*FAMILIES, *ALIASES):
        yield from (root / family).glob("*/configs/*.yaml")


def _read_yaml(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path)
    except OmegaConfBaseException as error:
        raise OperatorError(f"{path}: {_describe_error(error)}") from error
    except RecursionError as error:
        raise OperatorError(f"{path} contains itself, or is nested too deeply") from error
    except (OSError, ValueError, YAMLError) as error:
        raise OperatorError(f"{path} cannot be read as YAML: {_describe_yaml_error(error)}") from error
    if isinstance(loaded, ListConfig):
        raise OperatorError(f"{path} contains a list; expected a mapping of server names to settings")
    return loaded


def _describe_error(error: OmegaConfBaseException) -> str:
    """Explain an error without the grammar tokens and Python names of OmegaConf's own message."""
    key, found = error.full_key or "its content", str(error).splitlines()[0]
    if isinstance(error, GrammarParseError):
        return f"{key} contains an invalid ${{...}}; expected ${{name}}, ${{a.b}} or ${{oc.env:NAME}}"
    if isinstance(error, InterpolationKeyError):
        return (
            f"{key}: {found.replace('Interpolation key', 'the reference', 1).removesuffix(' not found')} does not exist"
        )
    if isinstance(error, InterpolationResolutionError) and '"' in found:
        return f"{key} cannot be resolved: {found.partition(chr(34))[2].rstrip(chr(34))}"
    return f"{key}: {found}" if error.full_key else "expected a mapping of server names to settings"


def _describe_yaml_error(error: Exception) -> str:
    """Format a YAML error in one line."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem or error.context} in line {mark.line + 1}, column {mark.column + 1}"
    return getattr(error, "strerror", None) or " ".join(str(error).split())


def _merge(tree: DictConfig, other: DictConfig) -> DictConfig:
    merged = OmegaConf.merge(tree, other)
    assert isinstance(merged, DictConfig)
    return merged


def _check_top_level_keys(tree: DictConfig, overrides: Sequence[Override], options: Iterable[str]) -> None:
    """Reject a key that is neither in a config nor used by a `${...}`: it must be misspelt."""
    text = OmegaConf.to_yaml(tree)
    known = {*(str(key) for key in tree), *_PLAIN_REFERENCE.findall(text)}
    for override in overrides:
        if override.top in known:
            continue
        nested_key = override.key.partition(".")[2].partition(".")[0]
        names_a_family = nested_key in {*FAMILIES, *ALIASES} or (
            isinstance(override.value, dict) and bool({*FAMILIES, *ALIASES} & override.value.keys())
        )
        if override.adds and names_a_family:
            continue  # the command line defines an entire server
        hint = did_you_mean(override.top, [*known, *options])
        raise OperatorError(
            f"unknown option {override.top!r} in {override.shown!r}{hint}: "
            "it is neither an option of this command, nor a server of the configs, nor a ${...} in them"
        )


def _fill_from_environment(tree: DictConfig, environ: Mapping[str, str]) -> None:
    references = [name for name in dict.fromkeys(_PLAIN_REFERENCE.findall(OmegaConf.to_yaml(tree))) if name not in tree]
    if missing := [name for name in references if not environ.get(name)]:
        name, *others = missing
        user = next(_paths_that_use(name, OmegaConf.to_container(tree), ""), "a config")
        also = f" (also not set: {', '.join(others)})" if others else ""
        raise OperatorError(
            f"{user} needs ${{{name}}}, which is not set: export {name}=..., "
            f"add '+{name}=...', or put `{name}: ...` into env.yaml{also}"
        )
    for name in references:
        tree[name] = environ[name]


def _paths_that_use(name: str, node: Any, path: str) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _paths_that_use(name, value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, str) and f"${{{name}}}" in node:
        yield path


def _resolve(tree: DictConfig) -> Json:
    try:
        resolved = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise OperatorError(f"config value {_describe_error(error)}") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _servers(resolved: Json, roots: Sequence[Path]) -> Iterator[ServerSpec]:
    for name, node in resolved.items():
        families = [key for key in node if ALIASES.get(key, key) in FAMILIES] if isinstance(node, dict) else []
        if not families:
            hints = [did_you_mean(str(key), (*FAMILIES, *ALIASES)) for key in node] if isinstance(node, dict) else []
            if any(hints):
                raise OperatorError(f"{name} has {', '.join(map(str, node))}{next(filter(None, hints))}")
            continue
        if len(families) > 1:
            raise OperatorError(f"{name} contains {' and '.join(families)}; a server belongs to one family")
        (key,) = families
        if siblings := [other for other in node if other != key]:
            example = f"{name}.{key}.{next(iter(node[key] or {'...': None}), '...')}"
            raise OperatorError(
                f"{name} has {', '.join(map(str, siblings))} next to {key}; settings belong below {example}"
            )
        implementations = node[key]
        if not isinstance(implementations, dict) or len(implementations) != 1:
            raise OperatorError(f"{name}.{key} must contain exactly one implementation (the name of a folder)")
        ((implementation, raw),) = implementations.items()
        if not isinstance(raw, dict | None):
            raise OperatorError(f"{name}.{key}.{implementation} is {raw!r}; expected a mapping of settings")
        yield _server(name, ALIASES.get(key, key), str(implementation), raw or {}, roots)


def _server(name: str, family: str, implementation: str, raw: Json, roots: Sequence[Path]) -> ServerSpec:
    folder = find_folder(family, implementation, roots)
    isolated = needs_isolation(folder)
    if isolated:
        base = {key: value for key, value in raw.items() if key in ServerSettings.model_fields}
        settings = parse_settings(ServerSettings, base, name)
    else:
        kind = load_server(family, folder, str(raw.get("entrypoint", "app.py")))
        settings = parse_settings(kind.Settings, raw, name)
    return ServerSpec(name, family, implementation, folder, settings, raw, isolated)


def _check_references(servers: Sequence[ServerSpec]) -> None:
    families = {spec.name: spec.family for spec in servers}
    for spec in servers:
        for key, name, kind in _references(spec):
            if name not in families:
                known = ", ".join(sorted(families))
                hint = did_you_mean(name, families)
                raise OperatorError(
                    f"{spec.name}.{key} refers to {name!r}, which is not a server of this run{hint} (it has {known})"
                )
            expected = ALIASES.get(kind, kind) or _USUAL_FAMILY.get(key.rpartition(".")[2])
            if expected is not None and families[name] != expected:
                raise OperatorError(
                    f"{spec.name}.{key} refers to {name!r}, which is one of {families[name]}; expected {expected}"
                )


def _references(spec: ServerSpec) -> Iterator[tuple[str, str, str]]:
    """Yield the setting, server name and type of each reference. For an isolated server only its YAML is available."""
    yield from _references_in(spec.settings)
    for key, value in spec.raw.items() if spec.isolated else ():
        if isinstance(value, dict) and set(value) == {"type", "name"}:
            yield key, str(value["name"]), str(value["type"])


def _references_in(settings: BaseModel, path: str = "") -> Iterator[tuple[str, str, str]]:
    for key, value in settings:
        if isinstance(value, ServerRef):
            yield path + key, value.name, value.type
        elif isinstance(value, BaseModel):
            yield from _references_in(value, f"{path}{key}.")
