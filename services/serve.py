"""One server in one process: `python -m services.serve`, told everything through standard input."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop

from services.client import AddressBook, ServerClient
from services.code.server_code import code_of
from services.errors import EXIT_OPERATOR, OperatorError, RollyardError
from services.headlink import HeadLink
from services.hosted import Hosted, bind_for
from services.looplag import LoopLag
from services.plugins import FAMILIES, load_server
from services.process import calm_collector, die_with_parent, raise_file_limit
from services.server import Context
from services.settings import parse_settings
from services.terminal import plain, plain_output
from services.transport import HttpTransport, endpoint_transport
from services.types import Launch


async def serve(
    launch: Launch, environ: Mapping[str, str], stop: asyncio.Event, say: Callable[[str], None] | None = None
) -> None:
    """Host the server until `stop`; `say` hears when it is ready."""
    kind = load_server(launch.family, Path(launch.folder), str(launch.settings.get("entrypoint", "app.py")))
    code = code_of(Path(launch.folder), kind, FAMILIES, launch.settings)
    settings = parse_settings(kind.Settings, launch.settings, launch.name)
    lag = LoopLag()
    transport, endpoints = HttpTransport(lag=lag), endpoint_transport(environ, lag)
    head = HeadLink(transport, launch.head_url, launch.keys)
    book = AddressBook(head.directory)
    logs = Path(launch.log_folder) if launch.log_folder else None
    client = ServerClient(transport, launch.keys, book, clock=lag.lived)
    server = kind(settings, Context(launch.name, launch.keys, client, logs, endpoints, launch.instance))
    if launch.check_only:
        await server.check()
        await transport.close()
        await endpoints.close()
        return
    # A fixed port belongs to one replica only; the others take free ones.
    hosted = Hosted(server, bind_for(launch.name, settings), advertise=launch.advertise, lag=lag)
    joining = asyncio.create_task(hosted.join(launch.instance, head, book, code))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({joining, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if joining.done():
            joining.result()
            calm_collector()
            if say is not None:
                say(f"  {launch.name:<36} ready  {hosted.url}")
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
    """Read the launch from standard input and serve."""
    launch = Launch.model_validate_json(sys.stdin.buffer.read())
    with plain_output():  # logs are looked at in terminals
        _main(launch)


def _main(launch: Launch) -> None:
    if launch.parent_pid:
        die_with_parent(launch.parent_pid)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
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
