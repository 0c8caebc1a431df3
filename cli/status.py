"""ng_status: shows the running servers and active rollouts, as tables or as JSON (--json)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import orjson
import uvloop
from pydantic import Field
from rich.console import Console
from rich.live import Live
from rich.text import Text

from rollyard.cli.arguments.head_address import HeadServer, head_address
from rollyard.cli.display.console import console, is_terminal
from rollyard.cli.display.status_view import view
from rollyard.cli.find_run import PrintLine, find_run, on_stderr, without_repeats
from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.errors import Failure, RunError
from rollyard.records.io.exit_status import EXIT_DONE, EXIT_FAILED
from rollyard.services.head.run_snapshot import RunSnapshot, fetch_snapshot
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym.snapshot import fetch_nemo_gym_snapshot

EXAMPLE = "ng_status --watch"
INTERVAL_S = 1.0


class StatusOptions(Options):
    json_output: bool = Field(default=False, alias="json")
    """Print the servers as a JSON list instead of tables; with --watch, one line per second."""
    episodes: bool = False
    """With --json: print one object that also contains active rollouts and collections."""
    watch: bool = False
    """Refresh every second until Ctrl-C."""
    head: str | None = None
    """HOST:PORT of the head; default: a run started here or in a parent folder, else this user's on port 11000."""
    head_server: HeadServer | None = None
    """The same in NeMo Gym's form: --head-server.host ... --head-server.port ..."""
    token: str | None = None
    """Run token, if it is not stored in the run's folder; also read from the environment variable ROLLYARD_TOKEN."""


def main() -> None:
    run_command("ng_status", StatusOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Show the servers, active rollouts and stuck episodes. The exit status is 1 if a server is not ready."""
    options, _ = read_options(StatusOptions, arguments)
    if not options.watch:
        return uvloop.run(_show_once(options))
    try:
        uvloop.run(_watch(options))
    except KeyboardInterrupt:  # the normal end of --watch
        return EXIT_DONE
    return EXIT_DONE


async def _show_once(options: StatusOptions) -> int:
    transport = HttpTransport()
    try:
        snapshot = await _fetch(transport, options, on_stderr)
    finally:
        await transport.close()
    if options.json_output:
        print(_json(snapshot, options, orjson.OPT_INDENT_2))
    else:
        screen = _console()
        screen.print(view(snapshot, screen))
    return EXIT_DONE if all(instance.ready for instance in snapshot.servers) else EXIT_FAILED


async def _watch(options: StatusOptions) -> None:
    """Refresh every second. If there is no active run, keep waiting for one."""
    transport, screen, print_line = HttpTransport(), _console(), without_repeats(on_stderr)
    try:
        if options.json_output:
            async for snapshot in _poll(transport, options, print_line):
                print(_json(snapshot, options, 0), flush=True)
        elif screen.is_terminal:
            with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as display:
                async for snapshot in _poll(transport, options, print_line):
                    display.update(
                        view(snapshot, screen) if isinstance(snapshot, RunSnapshot) else Text(snapshot), refresh=True
                    )
        else:
            async for snapshot in _poll(transport, options, print_line):
                screen.print(view(snapshot, screen) if isinstance(snapshot, RunSnapshot) else Text(snapshot), Text())
    finally:
        await transport.close()


async def _poll(
    transport: HttpTransport, options: StatusOptions, print_line: PrintLine
) -> AsyncIterator[RunSnapshot | str]:
    """Yield the status every second, or a message if it cannot be fetched."""
    while True:
        try:
            yield await _fetch(transport, options, print_line)
        except (RunError, Failure) as error:
            yield str(error)
        await asyncio.sleep(INTERVAL_S)


async def _fetch(transport: HttpTransport, options: StatusOptions, print_line: PrintLine) -> RunSnapshot:
    token = options.token or os.environ.get("ROLLYARD_TOKEN")
    address = head_address(options.head, options.head_server)
    head = await find_run(transport, Path.cwd(), address, token, print_line, nemo_gym=True)
    return await (fetch_nemo_gym_snapshot if head.stack == "nemo_gym" else fetch_snapshot)(transport, head)


def _json(snapshot: RunSnapshot | str, options: StatusOptions, style: int) -> str:
    if isinstance(snapshot, str):
        return orjson.dumps({"note": snapshot}).decode()
    shown = snapshot if options.episodes else snapshot.servers
    return orjson.dumps(shown, option=style, default=lambda record: record.model_dump(by_alias=True)).decode()


def _console() -> Console:
    return console(sys.stdout, width=None if is_terminal(sys.stdout) else 200, highlight=False)
