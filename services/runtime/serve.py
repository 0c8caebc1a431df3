"""Runs one server in one process: `python -m rollyard.services.runtime.serve`, with its Launch on standard input."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import stat
import sys
import threading
import time
import traceback
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
from rollyard.services.http.telemetry import open_telemetry
from rollyard.services.http.transport import HttpTransport, endpoint_transport
from rollyard.services.runtime.hosting import HostedServer, bind_for
from rollyard.services.runtime.process_setup import collect_garbage, configure_log, die_with_parent, raise_file_limit
from rollyard.services.server.app import Context
from rollyard.services.server.settings import parse_settings

log = logging.getLogger(__name__)
BLOCKED_S = 5.0
"""A loop that is blocked for so long is reported: the other episodes of the server wait meanwhile."""
LOOK_EVERY_S = 1.0
_SHOWN_FRAMES = 8


def main() -> None:
    launch = Launch.model_validate_json(sys.stdin.buffer.read())
    with plain_output():  # logs are viewed in terminals
        run(launch)


def run(launch: Launch) -> None:
    """Serve until a signal arrives. Exits with the status of a failure, after its message."""
    if launch.parent_pid:
        die_with_parent(launch.parent_pid)
    configure_log()
    raise_file_limit()
    with contextlib.suppress(OSError):  # for ps and top, which show 15 characters; a forked process has its parent's
        Path("/proc/self/comm").write_text(launch.name)
    try:
        uvloop.run(serve_until_signalled(launch, os.environ))
    except OperatorError as error:
        print(f"{launch.name}: {error}", file=sys.stderr)
        sys.exit(EXIT_OPERATOR)
    except (RollyardError, OSError) as error:
        sys.exit(plain(f"{launch.name}: {error}"))


async def serve_until_signalled(launch: Launch, environ: Mapping[str, str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await serve(launch, environ, stop)


async def serve(
    launch: Launch, environ: Mapping[str, str], stop: asyncio.Event, print_line: Callable[[str], None] | None = None
) -> None:
    """Host the server until `stop` is set. Call `print_line` with a status line when the server is ready."""
    kind = load_server(launch.family, Path(launch.folder), str(launch.settings.get("entrypoint", "app.py")))
    code = server_code(Path(launch.folder))
    settings = parse_settings(kind.Settings, launch.settings, launch.name)
    lag = LoopLag()
    ca_files = launch.keys.ca_files
    transport, endpoints = HttpTransport(lag=lag, ca_files=ca_files), endpoint_transport(environ, lag, ca_files)
    head = RegistryClient(transport, launch.head_url, launch.keys)
    book = AddressBook(head.directory)
    logs = Path(launch.log_folder) if launch.log_folder else None
    telemetry = None if launch.check_only else open_telemetry(environ, launch.name)
    client = ServerClient(telemetry.transport(transport) if telemetry else transport, launch.keys, book, clock=lag.now)
    server = kind(settings, Context(launch.name, launch.keys, client, logs, endpoints, launch.instance, telemetry))
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
            collecting = asyncio.create_task(collect_garbage())
            if print_line is not None:
                print_line(f"  {launch.name:<36} ready  {hosted.url}")
            await stopping
            collecting.cancel()
    finally:
        joining.cancel()
        stopping.cancel()
        await hosted.stop()
        await transport.close()
        await endpoints.close()
        if telemetry is not None:
            await telemetry.close()


def guard_loop(lag: LoopLag, name: str, blocked_s: float = BLOCKED_S) -> None:
    """Guard the running loop, which is that of the server `name`, until the process ends."""
    loop = asyncio.get_running_loop()
    threading.Thread(target=_report_blocks, args=(lag, name, threading.get_ident(), blocked_s), daemon=True).start()
    os.register_at_fork(after_in_child=lambda: _abandon(loop, name))


def _report_blocks(lag: LoopLag, name: str, thread: int, blocked_s: float) -> None:
    """Log once per block where the code is that blocks the loop."""
    reported = False
    while True:
        time.sleep(min(LOOK_EVERY_S, blocked_s / 4))
        late_s = lag.late_s
        if late_s < blocked_s:
            reported = False
        elif not reported and (frame := sys._current_frames().get(thread)) is not None:
            reported = True
            where = "".join(traceback.format_list(traceback.extract_stack(frame)[-_SHOWN_FRAMES:]))
            log.error(
                "%s has blocked its event loop for %.0f s, so that all its other episodes wait; use `await "
                "asyncio.to_thread(...)` for such work. It is at:\n%s",
                *(name, late_s, where.rstrip()),
            )


def _abandon(loop: asyncio.AbstractEventLoop, name: str) -> None:
    """Prevent a forked child from serving: it would take requests and connections away from its parent."""

    def leave() -> None:
        os.write(2, f"{name}: a forked child returned to the server's event loop and was ended\n".encode())
        os._exit(1)

    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (int(entry.name) for entry in Path("/dev/fd").iterdir()):
            if _is_network(fd):
                os.dup2(null, fd, inheritable=False)
        os.close(null)
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon(leave)


def _is_network(fd: int) -> bool:
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            with socket.socket(fileno=os.dup(fd)) as sock:
                return sock.family in (socket.AF_INET, socket.AF_INET6)
    return False


if __name__ == "__main__":
    main()
