"""ng_run: starts the head and every server of the configs, stays in the foreground, and stops them on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import uvloop
from pydantic import Field

from rollyard.cli.options import TlsOptions, read_options, run_command
from rollyard.records.errors import OperatorError
from rollyard.records.run_types import AccessRules, HeadFile, Keys, TlsFiles
from rollyard.records.script import EXIT_DONE, EXIT_INTERRUPTED
from rollyard.records.terminal import pluralize
from rollyard.records.variables import variable
from rollyard.services.config.load import load
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.replicas import usable_cores, with_replicas
from rollyard.services.config.run_config import RunConfig, ServerSpec
from rollyard.services.config.venv import cache_folder
from rollyard.services.http.access import KnownHosts, is_loopback
from rollyard.services.runtime.exposure import check_exposure
from rollyard.services.runtime.foreign_servers import refuse_programs
from rollyard.services.runtime.join import ListenAddress, join_run, select_servers, shared_keys
from rollyard.services.runtime.launcher import ForkedProcess, Launcher, LocalLauncher, forked_processes
from rollyard.services.runtime.preflight import Preflight
from rollyard.services.runtime.process_setup import raise_file_limit, tune_gc
from rollyard.services.runtime.ray_launcher import RayLauncher, check_cluster, on_cluster
from rollyard.services.runtime.run_dir import RunFolder
from rollyard.services.runtime.stack import Stack, new_keys
from rollyard.services.server.settings import dashed

EXAMPLE = (
    "ng_run responses_api_models/builtin_model/configs/builtin_model.yaml "
    "resources_servers/grl_sokoban/configs/grl_sokoban.yaml"
)


class RunOptions(TlsOptions):
    """Options of ng_run. All other overrides change the configs themselves."""

    SUBJECT: ClassVar[str] = "config_paths"
    RETIRED: ClassVar[Mapping[str, str]] = {
        "reload": "after changing a server's code, stop ng_run with Ctrl-C and start it again, then repeat the "
        "collection's command"
    }

    config_paths: tuple[str, ...]
    """YAML files that define the servers, relative to this folder, one of server_roots, or the installed package."""
    server_roots: tuple[str, ...] = ()
    """Additional folders to search for server folders and config files."""
    colocate: bool = False
    """Run all servers in one process. This takes less CPU time per turn, but uses only one core, and servers that fail
    are not restarted."""
    dry_run: bool = False
    """Check the configs and this host without starting any servers."""
    head_host: str = "127.0.0.1"
    """Address on which the head listens. Any address other than loopback requires a token."""
    head_port: int = Field(default=11000, ge=0, le=65535)
    """Port of the head. If it is taken, a different one is used and printed."""
    token: str | None = None
    """Run token that every request must send (Authorization: Bearer); also read from the variable ROLLYARD_TOKEN, or
    from the file that ROLLYARD_TOKEN_FILE names."""
    allow_other_users: bool = False
    """Without a token: accept requests from all users of this host, not only root and the user who started the run."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Without a token: additional host names to accept, such as that of a proxy in front of the servers."""
    tls_ca_file: Path | None = None
    """Private authority (PEM) that issued the certificate; default: the system's authorities."""
    max_client_requests: int = Field(default=AccessRules().client_requests, ge=1)
    """Maximum number of requests in flight of another user or host at each server; more get status 429. The user who
    started the run, and root, have no limit."""
    max_client_bytes: int = Field(default=AccessRules().client_bytes, ge=1)
    """Maximum total size of the bodies of these requests."""
    only: list[str] | None = None
    """Start only these servers, given by name or by family (agents). Without --head, also start the head, which waits
    for the others. Requires a token; [] starts only the head."""
    head: str | None = None
    """With --only: HOST:PORT of the head that these servers join."""
    host: str | None = None
    """With --head: address on which servers listen unless their settings specify one; default: 127.0.0.1."""
    advertise: str | None = None
    """With --only: name under which other hosts reach this one; default: its host name if bound to all addresses."""
    log_folder: Path | None = None
    """Folder for the servers' logs, to which they are appended; default: logs/ in the folder of the run."""
    private: bool = False
    """Other commands use this run only if no other one was started from this folder; ng_eval and ng_train set it."""
    ready_timeout_s: float = 300.0
    """Maximum time for all servers to become ready, in seconds."""
    ray_head_node_address: str | None = None
    """Run the servers on the Ray cluster at HOST:PORT; with auto, on the cluster that Ray finds."""


def main() -> None:
    run_command("ng_run", RunOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Start the servers of the configs and keep them running."""
    options, overrides = read_options(RunOptions, arguments, rest=True)
    here = Path.cwd()
    roots = search_roots(here, options.server_roots)
    config = load(options.config_paths, overrides, roots, os.environ, options=RunOptions.model_fields)
    token = options.token or variable(os.environ, "ROLLYARD_TOKEN")
    check_exposure(config.servers, token, options.head_host)
    KnownHosts(options.allowed_hosts)
    if options.ray_head_node_address:
        refuse_programs(config.servers, "--ray-head-node-address ...")
    tls = options.tls(options.tls_ca_file)
    if tls is not None:
        refuse_programs(config.servers, "--tls-certificate-file ...")
    if options.colocate and options.ray_head_node_address:
        raise OperatorError("--colocate cannot be combined with --ray-head-node-address ...")
    _check_only(options)
    if options.only is not None:
        refuse_programs(config.servers, "--only [...]")
    specs = list(config.servers) if options.only is None else select_servers(config.servers, options.only)
    has_processes = not (options.dry_run or options.colocate or options.ray_head_node_address or options.head)
    names = {spec.name for spec in specs if not (spec.is_foreign or spec.isolated)}
    started = _with_replicas(options, config, specs).servers if has_processes else ()
    count = sum(spec.replicas for spec in started if spec.name in names)
    with forked_processes(count) as forked:
        return uvloop.run(_check_and_run(options, config, specs, token, tls, here, forked))


async def _check_and_run(
    options: RunOptions,
    config: RunConfig,
    specs: list[ServerSpec],
    token: str | None,
    tls: TlsFiles | None,
    here: Path,
    forked: list[ForkedProcess],
) -> int:
    rules = AccessRules(
        other_users=options.allow_other_users,
        hosts=tuple(options.allowed_hosts),
        client_requests=options.max_client_requests,
        client_bytes=options.max_client_bytes,
    )
    keys = new_keys(token, rules, tls) if options.only is None else shared_keys(token, rules, tls)
    preflight = Preflight(specs, keys, os.environ)
    try:
        if options.head is None:
            RunFolder.check(here)
        if options.ray_head_node_address is not None:
            # Only the cluster is checked: its hosts may meet requirements that this host does not.
            await check_cluster(options.ray_head_node_address)
        else:
            head = None if options.head is not None else (options.head_host, options.head_port)
            await preflight.check(
                cache_folder(os.environ), head=head, colocate=options.colocate, advertise=options.advertise
            )
        if options.dry_run:
            print_plan(_with_replicas(options, config, specs), {spec.name for spec in specs}, await preflight.advice())
            return EXIT_DONE
        if options.head is not None:
            return await _join(options, config, specs, keys)
        return await _run(options, config, specs, keys, here, preflight, forked)
    finally:
        await preflight.close()


async def _join(options: RunOptions, config: RunConfig, specs: list[ServerSpec], keys: Keys) -> int:
    stopped = _until_signalled()
    raise_file_limit()
    url = HeadFile.at(str(options.head), scheme="http" if keys.tls is None else "https").url
    address = ListenAddress(url, options.host, options.advertise)
    _print_line(f"run {keys.run_id}: {', '.join(spec.name for spec in specs)}, joining the head at {url}")
    timeout_s = options.ready_timeout_s
    await join_run(
        config, specs, keys, address, stopped, environ=os.environ, print_line=_print_line, timeout_s=timeout_s
    )
    _print_line("stopped")
    return EXIT_DONE


def _until_signalled() -> asyncio.Event:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


async def _run(
    options: RunOptions,
    config: RunConfig,
    specs: list[ServerSpec],
    keys: Keys,
    here: Path,
    preflight: Preflight,
    forked: list[ForkedProcess],
) -> int:
    stopped = _until_signalled()
    raise_file_limit()
    async with _launcher(options, config, specs, stopped, forked) as (launcher, node_ip):
        if stopped.is_set():
            _print_line("stopped")
            return EXIT_INTERRUPTED
        head_host = options.head_host
        if node_ip is not None and is_loopback(head_host):
            head_host = node_ip
        if node_ip is not None and keys.token is None:
            keys = keys.model_copy(update={"token": secrets.token_urlsafe(32)})
        folder = RunFolder.create(here, keys.run_id, options.log_folder and options.log_folder.absolute())
        stack = Stack(
            config,
            keys,
            folder,
            print_line=_print_line,
            launcher=launcher,
            head_host=head_host,
            head_port=options.head_port,
            head_advertise=node_ip or options.advertise,
            ready_timeout_s=options.ready_timeout_s,
            environ=os.environ,
            here=specs,
            private=options.private,
            cores=launcher.cores if isinstance(launcher, RayLauncher) else None,
        )
        return await _serve(stack, stopped, here, preflight)


async def _serve(stack: Stack, stopped: asyncio.Event, here: Path, preflight: Preflight) -> int:
    config, keys, folder = stack.config, stack.keys, stack.folder
    _print_line(f"run {keys.run_id}: {len(config.servers)} servers, head {stack.head_url}")
    if keys.access.other_users and not keys.token:
        _print_line("every user of this host may call these servers (--allow-other-users)")
    if stack.has_processes:
        logs = folder.logs.relative_to(here) if folder.logs.is_relative_to(here) else folder.logs
        _print_line(f"logs in {logs}/")
    for note in config.notes:
        _print_line(f"note: {note}")
    interrupted = asyncio.create_task(stopped.wait())
    starting = asyncio.create_task(stack.start())
    tasks: list[asyncio.Task[Any]] = [interrupted, starting]
    try:
        await asyncio.wait({interrupted, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            tune_gc()
            advising = asyncio.create_task(preflight.advice())  # not before: it takes CPU time from the start
            tasks.append(advising)
            await asyncio.wait({interrupted, advising}, return_when=asyncio.FIRST_COMPLETED)
            for advice in advising.result() if advising.done() else ():
                _print_line(f"note: {advice}")
            await stopped.wait()
            _print_line("stopping ...")
            return EXIT_DONE
        return EXIT_INTERRUPTED
    finally:
        for task in tasks:
            task.cancel()
        await stack.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        _print_line("stopped")


@contextlib.asynccontextmanager
async def _launcher(
    options: RunOptions,
    config: RunConfig,
    specs: Sequence[ServerSpec],
    stopped: asyncio.Event,
    forked: list[ForkedProcess],
) -> AsyncIterator[tuple[Launcher | None, str | None]]:
    """Yield the launcher (None: this process) and this host's address (None if other hosts need not reach it)."""
    cache = cache_folder(os.environ)
    if options.ray_head_node_address is None:
        yield (None if options.colocate else LocalLauncher(cache, forked=forked)), None
        return
    async with on_cluster(options.ray_head_node_address, cache) as launcher:
        names = {spec.name for spec in specs}
        chosen = with_replicas(config, names, launcher.cores).servers
        own = [spec for spec in chosen if spec.name in names]
        await launcher.reserve(own, options.ready_timeout_s, print_line=_print_line, stopped=stopped)
        if launcher.on_network:
            _print_line(f"Ray cluster of {len(launcher.hosts)} hosts; requests need the run's token (in its head.json)")
        yield launcher, launcher.node_ip if launcher.on_network else None


def _check_only(options: RunOptions) -> None:
    if options.only is None:
        for name in ("head", "host", "advertise"):
            if getattr(options, name) is not None:
                raise OperatorError(f"{dashed(name)} requires --only [...], the servers to start on this host")
        return
    if options.ray_head_node_address:
        raise OperatorError(
            "--only [...] starts servers on this host and cannot be combined with --ray-head-node-address ..."
        )
    if options.head is not None and not options.only:
        raise OperatorError("--only [] starts only the head, and --head ... joins a running one; pass one of them")
    if options.head is None and options.host is not None:
        raise OperatorError(
            "--host only applies to servers that join with --head ...; the head's own address is set with --head-host"
        )


_print_line = partial(print, flush=True)


def _with_replicas(options: RunOptions, config: RunConfig, specs: Sequence[ServerSpec]) -> RunConfig:
    """Return the config as it would start. How many cores a Ray cluster has is only known once it is joined."""
    if options.ray_head_node_address is not None:
        return config
    shares_process = options.colocate or options.head is not None
    return with_replicas(config, {spec.name for spec in specs}, None if shares_process else usable_cores())


def print_plan(config: RunConfig, names: Container[str], advice: Sequence[str]) -> None:
    specs = [spec for spec in config.servers if spec.name in names]
    for spec in specs:
        replicas = spec.auto_replicas or "auto" if spec.is_auto else spec.replicas
        note = "" if replicas == 1 else f" x {replicas}"
        own = ", separate virtual environment" if spec.isolated else ""
        where = f" ({spec.origin})" if spec.origin else ""
        print(f"  {spec.name:<36} {spec.family}/{spec.implementation}{note}{own}{where}")
    for text in (*config.notes, *advice):
        print(f"note: {text}")
    print(f"{pluralize(len(specs), 'server')} configured correctly; nothing was started (dry_run).")
