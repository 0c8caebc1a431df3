"""Runs one server in one process: `python -m rollyard.services.runtime.serve`, with its Launch on standard input."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop

from rollyard.records.errors import EXIT_OPERATOR, OperatorError, RollyardError
from rollyard.records.run_types import Launch
from rollyard.records.terminal import plain, plain_output
from rollyard.services.config.plugins import load_server
from rollyard.services.config.server_code import server_code
from rollyard.services.head.registry_client import RegistryClient
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.transport import HttpTransport, endpoint_transport
from rollyard.services.runtime.hosting import HostedServer, bind_for
from rollyard.services.runtime.loop_guard import guard_loop
from rollyard.services.runtime.process_setup import configure_log, die_with_parent, raise_file_limit, tune_gc
from rollyard.services.server.app import Context
from rollyard.services.server.settings import parse_settings


async def serve(
    launch: Launch, environ: Mapping[str, str], stop: asyncio.Event, print_line: Callable[[str], None] | None = None
) -> None:
    """Host the server until `stop` is set. Call `print_line` with a status line when the server is ready."""
    kind = load_server(launch.family, Path(launch.folder), str(launch.settings.get("entrypoint", "app.py")))
    code = server_code(Path(launch.folder))
    settings = parse_settings(kind.Settings, launch.settings, launch.name)
    lag = LoopLag()
    transport, endpoints = HttpTransport(lag=lag), endpoint_transport(environ, lag)
    head = RegistryClient(transport, launch.head_url, launch.keys)
    book = AddressBook(head.directory)
    logs = Path(launch.log_folder) if launch.log_folder else None
    client = ServerClient(transport, launch.keys, book, clock=lag.now)
    server = kind(settings, Context(launch.name, launch.keys, client, logs, endpoints, launch.instance))
    if launch.check_only:
        await server.check()
        await transport.close()
        await endpoints.close()
        return
    # Only the first replica uses a fixed port; the Supervisor gives the others port 0.
    guard_loop(lag, launch.name)
    hosted = HostedServer(server, bind_for(launch.name, settings), advertise=launch.advertise, lag=lag)
    joining = asyncio.create_task(hosted.join(launch.instance, head, book, code))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
            tune_gc()
            if print_line is not None:
                print_line(f"  {launch.name:<36} ready  {hosted.url}")
            await stopping
    finally:
        joining.cancel()
        stopping.cancel()
        await hosted.stop()
        await transport.close()
        await endpoints.close()


async def serve_until_signalled(launch: Launch, environ: Mapping[str, str]) -> None:
    """Host the server until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(launch, environ, stop)


def main() -> None:
    """Read the Launch message from standard input and serve."""
    launch = Launch.model_validate_json(sys.stdin.buffer.read())
    with plain_output():  # logs are viewed in terminals
        _main(launch)


def _main(launch: Launch) -> None:
    if launch.parent_pid:
        die_with_parent(launch.parent_pid)
    configure_log()
    raise_file_limit()
    try:
        uvloop.run(serve_until_signalled(launch, os.environ))
    except OperatorError as error:
        print(f"{launch.name}: {error}", file=sys.stderr)
        sys.exit(EXIT_OPERATOR)
    except (RollyardError, OSError) as error:
        sys.exit(plain(f"{launch.name}: {error}"))


if __name__ == "__main__":
    main()
