"""One server in one process: `python -m services.serve`, told everything through standard input."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import uvloop

from services.client import AddressBook, ServerClient
from services.errors import Failure, OperatorError, RollyardError
from services.hosted import HeadLink, Hosted, bind
from services.plugins import load_server
from services.server import Context
from services.settings import parse_settings
from services.transport import HttpTransport
from services.types import Launch

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to end this process when its parent dies, whatever the parent died of."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit("the process that started this server is gone already")


def raise_file_limit() -> int:
    """As many open files as the system lets this process have: each episode in flight takes a few sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def calm_collector() -> None:
    """What exists now lives for ever, and short-lived JSON needs no search for cycles every 700 objects."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def serve(launch: Launch) -> None:
    """Host the server until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    kind = load_server(launch.family, Path(launch.folder), str(launch.settings.get("entrypoint", "app.py")))
    settings = parse_settings(kind.Settings, launch.settings, launch.name)
    transport = HttpTransport()
    head = HeadLink(transport, launch.head_url, launch.keys)
    book = AddressBook(head.directory)
    server = kind(settings, Context(launch.name, launch.keys, ServerClient(transport, launch.keys, book)))
    # A fixed port belongs to one replica only; the others take free ones.
    hosted = Hosted(server, bind(settings.host, settings.port), advertise=launch.advertise)
    try:
        await hosted.join(launch.instance, head, book)
        calm_collector()
        await stop.wait()
    finally:
        await hosted.stop()
        await transport.close()


def main() -> None:
    """Read the launch from standard input and serve."""
    launch = Launch.model_validate_json(sys.stdin.buffer.read())
    if launch.parent_pid:
        die_with_parent(launch.parent_pid)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    raise_file_limit()
    try:
        uvloop.run(serve(launch))
    except (OperatorError, RollyardError, Failure, OSError) as error:
        sys.exit(f"{launch.name}: {error}")


if __name__ == "__main__":
    main()
