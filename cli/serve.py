"""ng_serve: serves an environment to programs that speak OpenEnv or ORS."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import uvloop
from fastapi import FastAPI
from omegaconf import OmegaConf
from pydantic import Field

from rollyard.api import connect, stack
from rollyard.cli.options import TlsOptions, listening_token, read_options, run_command
from rollyard.records.data_files import DataFiles
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.script import EXIT_DONE
from rollyard.records.types import Json
from rollyard.services.config.load import find_config, read_yaml
from rollyard.services.config.plugins import FAMILY_ALIASES, search_roots
from rollyard.services.http.listener import bind
from rollyard.services.http.tls import ServerCertificate
from rollyard.services.interop.environment import ServedEnvironment, TaskList, open_environment
from rollyard.services.interop.openenv import openenv_app
from rollyard.services.interop.ors import ors_app
from rollyard.services.interop.served_app import listening_to_clients
from rollyard.services.runtime.exposure import owner_of_port
from rollyard.services.runtime.process_setup import raise_file_limit
from rollyard.services.runtime.running_stack import RunningStack

EXAMPLE = "ng_serve --protocol openenv --environment grl_sokoban --port 8000"


class ServeOptions(TlsOptions):
    protocol: Literal["openenv", "ors"]
    """The protocol of the clients."""
    environment: str | None = None
    """Folder of the environment, such as grl_sokoban. With --config-paths or --head, the name of the server, which
    may be left out if there is only one."""
    config_paths: list[str] = Field(default_factory=list)
    """Configs with the environment, and the model servers that it calls. Their agents are not started."""
    head: str | None = None
    """HOST:PORT of a running stack's head: serve an environment of that stack instead of starting one."""
    data: str | None = None
    """Rows that clients play; default: the environment's example rows."""
    split: Literal["train", "validation", "test"] = "train"
    """The name of the rows' split."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """Name under which clients see the environment; default: the name of its server."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address other than loopback requires a token."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0: any free port."""
    token: str | None = None
    """Token that clients must send; also read from the environment variable ROLLYARD_TOKEN, except on loopback."""
    server_roots: list[Path] = Field(default_factory=list)
    """Additional folders to search for environments and configs."""
    max_sessions: int = Field(default=10_000, ge=1)
    """Maximum number of open sessions; more are refused."""
    session_idle_s: float = Field(default=900.0, gt=0)
    """Seconds after which a session without requests or an open connection is closed."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Deadline of each call to the environment, in seconds."""


def main() -> None:
    run_command("ng_serve", ServeOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Serve an environment to other projects' clients, over OpenEnv or ORS.

    Settings of its server can be overridden as for ng_run: --grl_sokoban.resources_servers.grl_sokoban.max_steps 20
    """
    options, others = read_options(ServeOptions, arguments, rest=True)
    logging.basicConfig(level=logging.WARNING, format="ng_serve: %(message)s")
    token = listening_token(options.host, options.token, "the environment", "drop --host")
    raise_file_limit()
    files = options.tls()
    certificate = None if files is None else ServerCertificate(files)
    with _socket(options) as sock:
        uvloop.run(_serve(options, [override.text for override in others], sock, token, certificate))
    return EXIT_DONE


async def _serve(
    options: ServeOptions,
    overrides: list[str],
    sock: socket.socket,
    token: str | None,
    certificate: ServerCertificate | None,
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks = _tasks(options)
    async with _stack(options, overrides) as running:
        server = options.environment
        client = running.access.clients.client
        environment = await open_environment(client, server, options.name, tasks, options.timeout_s)
        async with listening_to_clients(_app(options, environment), sock, options.host, token, certificate):
            host, port = sock.getsockname()[:2]
            scheme = "http" if certificate is None else "https"
            address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
            play = "messages" if environment.turn_based else f"{len(environment.tools)} tools"
            about = f"{len(environment.tasks)} tasks, played with {play}"
            print(f"{environment.name} ({about}) over {options.protocol} at {address}", flush=True)
            await stop.wait()


def _stack(options: ServeOptions, overrides: list[str]) -> RunningStack:
    """Return the stack that holds the environment. Raises OperatorError if the options do not name one."""
    if options.head is not None:
        if options.config_paths or overrides:
            extra = "--config-paths" if options.config_paths else overrides[0]
            raise OperatorError(f"--head connects to a running stack, so {extra!r} has no effect; drop one of them")
        return connect(options.head, token=options.token)
    roots = search_roots(Path.cwd(), options.server_roots)
    configs = [_without_agents(find_config(path, roots)) for path in options.config_paths]
    if not configs:
        if options.environment is None:
            raise OperatorError("nothing to serve: pass --environment FOLDER, --config-paths [...] or --head HOST:PORT")
        configs = [{options.environment: {"resources_servers": {options.environment: {"entrypoint": "app.py"}}}}]
    logs = logging.getLogger("rollyard.ng_serve")
    return stack(configs, *overrides, colocate=True, server_roots=options.server_roots, print_line=logs.info)


def _without_agents(path: Path) -> Json:
    """Return the config without its agents, so that it needs no policy."""
    tree: Any = OmegaConf.to_container(read_yaml(path), resolve=False)
    agents = {"agents", *(alias for alias, family in FAMILY_ALIASES.items() if family == "agents")}
    return {name: node for name, node in tree.items() if not (isinstance(node, dict) and agents & node.keys())}


def _tasks(options: ServeOptions) -> TaskList | None:
    if options.data is None:
        return None
    return TaskList.read(DataFiles(search_roots(Path.cwd(), options.server_roots)).get(options.data), options.split)


def _app(options: ServeOptions, environment: ServedEnvironment) -> FastAPI:
    limits: dict[str, Any] = {"max_sessions": options.max_sessions, "idle_s": options.session_idle_s}
    if options.protocol == "openenv":
        return openenv_app(environment, **limits)
    return ors_app(environment, version=version("rollyard"), **limits)


def _socket(options: ServeOptions) -> socket.socket:
    try:
        return bind(options.host, options.port)
    except OSError as error:
        owner = owner_of_port(options.port) if options.port else ""
        where = f"{options.host}:{options.port}{owner}"
        raise RunError(f"cannot listen on {where}: {error.strerror or error}; choose another --port") from error
