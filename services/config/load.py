"""Merges YAML files and overrides into typed settings and checks them before anything starts.

Later sources take precedence: the files of `config_paths` from left to right, then `env.yaml` in the working directory,
then the command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json
from rollyard.services.config.nemo_gym.folders import with_roots_of
from rollyard.services.config.nemo_gym.foreign import LAUNCH_KEYS, with_chosen_environment
from rollyard.services.config.nemo_gym.inheritance import expand, missing_values
from rollyard.services.config.overrides import Override, apply
from rollyard.services.config.references import check_references
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.server_code.file_digest import file_digest
from rollyard.services.config.server_entries import ServerEntries
from rollyard.services.config.server_folders import ALIASES, FAMILIES
from rollyard.services.config.yaml_files import check_expansion, config_files, describe_error, read_yaml, resolved
from rollyard.services.server.settings import dashed

_PLAIN_REFERENCE = re.compile(r"(?<!\\)\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load(
    config_paths: Sequence[str | Mapping[str, Any]],
    overrides: Sequence[Override],
    roots: Sequence[Path],
    environ: Mapping[str, str],
    *,
    options: Iterable[str] = (),
    env_file: Path | None = Path("env.yaml"),
) -> RunConfig:
    """Merge, resolve and validate the configs. Raises OperatorError if they are invalid.

    `config_paths`: file names, or mappings with the contents of a file.
    `options`: names of the command's options, which are suggested when an unknown key resembles one.
    `env_file`: the file whose settings override `config_paths`, relative to the first of `roots`; None: there is none.
    """
    if not config_paths:
        raise OperatorError("no config given; expected, for example, ng_run a.yaml b.yaml")
    tree = OmegaConf.create({})
    env_path = None if env_file is None else roots[0] / env_file
    roots = with_chosen_environment(roots, overrides)
    given = config_files(config_paths, roots)
    files = {path.absolute(): file_digest(path) for path in (*given, env_path) if isinstance(path, Path)}
    for path in given:
        tree = _merge(tree, read_yaml(path) if isinstance(path, Path) else OmegaConf.create(dict(path)))
    if env_path is not None and env_path.is_file():
        tree = _merge(tree, read_yaml(env_path))
    check_expansion(tree)
    _check_top_level_keys(tree, overrides, options)
    apply(tree, overrides)
    tree = expand(tree)
    _fill_from_environment(tree, environ)
    resolved_tree = _resolve(tree)
    searched = with_roots_of((path for path in given if isinstance(path, Path)), roots)
    entries = ServerEntries(resolved_tree, searched)
    servers = entries.servers()
    if not servers:
        expected = f"a server name with one of {', '.join(FAMILIES)} as a key under it"
        raise OperatorError(
            f"the configs define no server (found keys: {', '.join(resolved_tree) or 'none'}); expected {expected}"
        )
    check_references(servers)
    return RunConfig(servers, resolved_tree, files, tuple(entries.notes))


def _merge(tree: DictConfig, other: DictConfig) -> DictConfig:
    merged = OmegaConf.merge(tree, other)
    assert isinstance(merged, DictConfig)
    return merged


def _check_top_level_keys(tree: DictConfig, overrides: Sequence[Override], options: Iterable[str]) -> None:
    """Reject overrides whose key is neither in a config nor used in a `${...}`, because it is probably misspelt."""
    text = OmegaConf.to_yaml(tree)
    known = {*(str(key) for key in tree), *_PLAIN_REFERENCE.findall(text), *LAUNCH_KEYS}
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
        found = f"{override.top!r} in {override.shown!r}"
        if override.is_dashed:
            found = repr(override.source.partition("=")[0])
            hint = hint.replace("_", "-").replace(" '", " '--")
        raise OperatorError(
            f"unknown option {found}{hint}: "
            "it is neither an option of this command, nor a server in the configs, nor a ${...} variable that they use"
        )


def _fill_from_environment(tree: DictConfig, environ: Mapping[str, str]) -> None:
    references = [name for name in dict.fromkeys(_PLAIN_REFERENCE.findall(OmegaConf.to_yaml(tree))) if name not in tree]
    if missing := [name for name in references if not environ.get(name)]:
        name, *others = missing
        user = next(_paths_that_use(name, OmegaConf.to_container(tree), ""), "a config")
        also = f" (also not set: {', '.join(others)})" if others else ""
        raise OperatorError(
            f"{user} needs ${{{name}}}, which is not set: export {name}=..., "
            f"add {dashed(name)} ..., or put `{name}: ...` in env.yaml{also}"
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
    if missing := missing_values(OmegaConf.to_container(tree, resolve=False)):
        listed = ", ".join(missing)
        raise OperatorError(
            f"{listed}: the config leaves {'this value' if len(missing) == 1 else 'these values'} open (???); "
            f"add '++{missing[0]}=...', or set it in env.yaml or in a config file"
        )
    try:
        plain = resolved(tree)
    except OmegaConfBaseException as error:
        raise OperatorError(f"config value {describe_error(error)}") from error
    return {str(key): value for key, value in plain.items()}
