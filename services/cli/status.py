"""ng_status: the running servers, for people and (+json=true) for machines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import orjson
import uvloop
from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from services.cli.find_run import find_run
from services.cli.options import EXIT_DONE, EXIT_FAILED, Options, read_options, run_command
from services.cli.progress import duration
from services.client import good
from services.transport import HttpTransport
from services.types import HeadFile, ServerInstance

EXAMPLE = "ng_status +json=true"
_INSTANCES = TypeAdapter(list[ServerInstance])


class StatusOptions(Options):
    """Options of ng_status."""

    json_output: bool = Field(default=False, alias="json")
    """A JSON list for machines instead of a table."""
    head: str | None = None
    """HOST:PORT of the head; default: the run started from this folder, then 127.0.0.1:11000."""
    token: str | None = None
    """Run token, if not in the run's folder; also read from the variable ROLLYARD_TOKEN."""


def main() -> None:
    """Entry point."""
    run_command("ng_status", StatusOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """List the running servers. Exit status 1 when one of them is not ready."""
    options, _ = read_options(StatusOptions, arguments)
    head, instances = uvloop.run(_ask(options))
    if options.json_output:
        print(orjson.dumps([instance.model_dump() for instance in instances], option=orjson.OPT_INDENT_2).decode())
    else:
        _print(head, instances)
    return EXIT_DONE if all(instance.ready for instance in instances) else EXIT_FAILED


async def _ask(options: StatusOptions) -> tuple[HeadFile, list[ServerInstance]]:
    transport = HttpTransport()
    try:
        head = await find_run(transport, Path.cwd(), options.head, options.token or os.environ.get("ROLLYARD_TOKEN"))
        headers = {"authorization": f"Bearer {head.token}"} if head.token else {}
        answer = await transport.send("GET", f"{head.url}/server_instances", b"", headers, 10.0)
        return head, _INSTANCES.validate_json(good(answer, "head").body)
    finally:
        await transport.close()


def _print(head: HeadFile, instances: list[ServerInstance]) -> None:
    console = Console(width=None if os.isatty(1) else 200)
    wide = console.width >= 150
    numbers = (
        ("uptime", "requests", "in flight", "sessions", "restarts") if wide else ("up", "reqs", "busy", "open", "rest.")
    )
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2 if wide else 1, 0, 0))
    for title in ("name", *(("family",) if wide else ()), "url" if wide else "port", "ready"):
        table.add_column(title, no_wrap=True)
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    for instance in instances:
        table.add_row(
            instance.server_name,
            *((f"{instance.server_type}/{instance.name}",) if wide else ()),
            (instance.url or "") if wide else str(instance.port or ""),
            ", ".join(filter(None, ["yes" if instance.ready else instance.status, instance.phase])),
            duration(instance.uptime_seconds),
            str(instance.requests),
            str(instance.in_flight),
            str(instance.sessions),
            str(instance.restarts),
        )
    ready = sum(instance.ready for instance in instances)
    console.print(table)
    console.print(f"run {head.run_id}, head {head.url}: {ready} of {len(instances)} ready", highlight=False)
