"""Starts the environment to check in a process of its own, or connects to one that runs elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollyard.records.errors import Failure, OperatorError, RunError, did_you_mean
from rollyard.services.config.load import load
from rollyard.services.config.overrides import Override
from rollyard.services.config.references import servers_of
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.server_folders import find_folder
from rollyard.services.http.transport import HttpTransport, Transport
from rollyard.services.runtime.launcher import LocalLauncher
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack, new_keys

FAMILY = "resources_servers"
BUILTIN = "responses_api_models/builtin_model/configs/builtin_model.yaml"
"""The policy_model of an environment's own config, for environments that call one, such as those with a judge."""


@dataclass(frozen=True)
class Target:
    """The environment to check."""

    name: str
    url: str
    transport: Transport
    pid: int | None = None
    """Its process; None if it runs elsewhere."""
    folder: Path | None = None
    log: Path | None = None


def is_url(name: str) -> bool:
    """Return whether the environment runs elsewhere."""
    return name.startswith(("http://", "https://"))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Target]:
    """Connect to an environment at a URL. Raises RunError if nothing responds there."""
    transport = HttpTransport()
    try:
        address = url.rstrip("/")
        try:
            await transport.send("GET", f"{address}/openapi.json", b"", {}, 10.0)
        except Failure as failure:
            raise RunError(f"{url} does not respond: {failure.problem.detail}") from failure
        yield Target(address, address, transport)
    finally:
        await transport.close()


@asynccontextmanager
async def started(config: RunConfig, name: str, cache: Path, environ: Mapping[str, str]) -> AsyncIterator[Target]:
    """Start the servers of the config, each in its own process. Raises RunError if one does not start."""
    spec = next(spec for spec in config.servers if spec.name == name)
    with tempfile.TemporaryDirectory(prefix="rollyard-doctor-", ignore_cleanup_errors=True) as temporary:
        keys = new_keys()
        folder = RunFolder.create(Path(temporary), keys.run_id)
        launcher = LocalLauncher(cache)
        stack = Stack(config, keys, folder, print_line=_ignore, launcher=launcher, head_port=0, environ=environ)
        transport = HttpTransport()
        try:
            await stack.start()
            (instance,) = [one for one in stack.registry.instances() if one.server_name == name]
            assert instance.url is not None
            log = next(iter(sorted(folder.logs.glob(f"{name}*"))), None)
            yield Target(name, instance.url, transport, instance.pid, spec.folder, log)
        finally:
            await transport.close()
            await stack.stop()


def _ignore(_: str) -> None:
    """Print nothing, because the findings are the output."""


def config_for(
    name: str,
    config_paths: Sequence[str],
    overrides: Sequence[Override],
    roots: Sequence[Path],
    environ: Mapping[str, str],
    options: Sequence[str],
) -> tuple[RunConfig, str]:
    """Return the config of the environment `name` and the servers that it refers to, and the server's name.

    `name` is a server in the configs, or the name or path of an environment's folder. Raises OperatorError if the name
    is unknown or ambiguous.
    """
    folder = Path(name)
    if "/" in name and not folder.is_dir():
        raise OperatorError(
            f"{name} is not a folder; expected the name or folder of an environment, or http://HOST:PORT"
        )
    if folder.is_dir() and "/" in name:
        folder = folder.resolve()
        if folder.parent.name != FAMILY:
            raise OperatorError(f"{folder} is not in a folder named {FAMILY}, so it is not an environment's folder")
        name, roots = folder.name, [folder.parent.parent, *roots]
    paths: list[str | Mapping[str, Any]] = list(config_paths)
    if not paths:
        paths = [BUILTIN, _own_config(find_folder(FAMILY, name, roots))]
    config = load(paths, overrides, roots, environ, options=options)
    spec = _chosen(config, name)
    needed = _needed(config, spec)
    return RunConfig(tuple(needed), config.tree, config.files), spec.name


def _own_config(folder: Path) -> str | Mapping[str, Any]:
    """Return the config file in the environment's folder, or a minimal config if it has none."""
    files = sorted((folder / "configs").glob("*.yaml"))
    named = folder / "configs" / f"{folder.name}.yaml"
    if named in files or len(files) == 1:
        return str(named if named in files else files[0])
    if files:
        listed = ", ".join(str(file) for file in files)
        raise OperatorError(f"{folder.name} has several configs: choose one with --config-paths [...] ({listed})")
    return {folder.name: {FAMILY: {folder.name: {}}}}


def _chosen(config: RunConfig, name: str) -> ServerSpec:
    specs = [spec for spec in config.servers if spec.family == FAMILY]
    found = [spec for spec in specs if spec.name == name] or [spec for spec in specs if spec.implementation == name]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(spec.name for spec in found or specs) or "none"
    problem = f"{name!r} is several environments" if found else f"the configs have no environment {name!r}"
    hint = "" if found else did_you_mean(name, [spec.name for spec in specs])
    raise OperatorError(f"{problem}{hint} (available: {listed})")


def _needed(config: RunConfig, spec: ServerSpec) -> list[ServerSpec]:
    """Return the environment and all servers that it refers to, directly or not."""
    specs = {one.name: one for one in config.servers}
    found: dict[str, ServerSpec] = {}
    pending = [spec.name]
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = specs[name]
            pending += servers_of(specs[name], specs)
    return list(found.values())
