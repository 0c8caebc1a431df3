"""ng_status: shows the running servers and active rollouts, as tables or as JSON (+json=true)."""

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
from rich.live import Live as Redrawn
from rich.text import Text

from rollyard.services.cli.console import console, is_terminal
from rollyard.services.cli.find_run import Say, find_run, on_stderr, once
from rollyard.services.cli.options import Options, read_options, run_command
from rollyard.services.cli.status_view import view
from rollyard.services.errors import Failure, RunError
from rollyard.services.head.run_snapshot import RunSnapshot, fetch_snapshot
from rollyard.services.http.transport import HttpTransport
from rollyard.services.io.exit_status import EXIT_DONE, EXIT_FAILED

EXAMPLE = "ng_status +watch=true"
AGAIN_S = 1.0


class StatusOptions(Options):
    """Options of ng_status."""

    json_output: bool = Field(default=False, alias="json")
    """Print the servers as a JSON list instead of tables; with +watch=true, one line per second."""
    episodes: bool = False
    """With +json=true: print one object that also contains active rollouts and collections."""
    watch: bool = False
    """Refresh every second until Ctrl-C."""
    head: str | None = None
    """HOST:PORT of the head; default: the run started from this folder, then this user's at 127.0.0.1:11000."""
    token: str | None = None
    """Run token, if not in the run's folder; also read from the variable ROLLYARD_TOKEN."""


def main() -> None:
    """Entry point."""
    run_command("ng_status", StatusOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Show the servers, the active rollouts and stuck episodes. Exit status 1 if a server is not ready."""
    options, _ = read_options(StatusOptions, arguments)
    if not options.watch:
        return uvloop.run(_once(options))
    try:
        uvloop.run(_watch(options))
    except KeyboardInterrupt:  # the normal end of +watch
        return EXIT_DONE
    return EXIT_DONE


async def _once(options: StatusOptions) -> int:
    transport = HttpTransport()
    try:
        live = await _look(transport, options, on_stderr)
    finally:
        await transport.close()
    if options.json_output:
        print(_json(live, options, orjson.OPT_INDENT_2))
    else:
        screen = _console()
        screen.print(view(live, screen))
    return EXIT_DONE if all(instance.ready for instance in live.servers) else EXIT_FAILED


async def _watch(options: StatusOptions) -> None:
    """Refresh every second. Waits for a run that is not up yet or has ended."""
    transport, screen, say = HttpTransport(), _console(), once(on_stderr)
    try:
        if options.json_output:
            async for seen in _looks(transport, options, say):
                print(_json(seen, options, 0), flush=True)
        elif screen.is_terminal:
            with Redrawn(console=screen, auto_refresh=False, vertical_overflow="crop") as redrawn:
                async for seen in _looks(transport, options, say):
                    redrawn.update(view(seen, screen) if isinstance(seen, RunSnapshot) else Text(seen), refresh=True)
        else:
            async for seen in _looks(transport, options, say):
                screen.print(view(seen, screen) if isinstance(seen, RunSnapshot) else Text(seen), Text())
    finally:
        await transport.close()


async def _looks(transport: HttpTransport, options: StatusOptions, say: Say) -> AsyncIterator[RunSnapshot | str]:
    """Return the current status, or a message if there is none."""
    while True:
        try:
            yield await _look(transport, options, say)
        except (RunError, Failure) as error:
            yield str(error)
        await asyncio.sleep(AGAIN_S)


async def _look(transport: HttpTransport, options: StatusOptions, say: Say) -> RunSnapshot:
    token = options.token or os.environ.get("ROLLYARD_TOKEN")
    return await fetch_snapshot(transport, await find_run(transport, Path.cwd(), options.head, token, say))


def _json(seen: RunSnapshot | str, options: StatusOptions, style: int) -> str:
    if isinstance(seen, str):
        return orjson.dumps({"note": seen}).decode()
    shown = seen if options.episodes else seen.servers
    return orjson.dumps(shown, option=style, default=lambda record: record.model_dump(by_alias=True)).decode()


def _console() -> Console:
    return console(sys.stdout, width=None if is_terminal(sys.stdout) else 200, highlight=False)
