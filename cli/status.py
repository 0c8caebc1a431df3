"""ng_status: shows the running servers and active rollouts, as tables or as JSON (--json)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path

import orjson
import uvloop
from pydantic import Field
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rollyard.cli.console import console, is_terminal
from rollyard.cli.options import Options, read_options, run_command
from rollyard.records.activity import Collection, StageActivity
from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.run_types import HeadFile, HeadServer, ServerInstance, play_token
from rollyard.records.script import EXIT_DONE, EXIT_FAILED
from rollyard.records.terminal import duration, plain_line
from rollyard.records.variables import variable
from rollyard.services.head.registry_client import RunSnapshot, fetch_snapshot
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym import fetch_nemo_gym_snapshot
from rollyard.services.runtime.run_dir import PrintLine, find_run, head_address, on_stderr, without_repeats

EXAMPLE = "ng_status --watch"
INTERVAL_S = 1.0


class StatusOptions(Options):
    json_output: bool = Field(default=False, alias="json")
    """Print the servers as a JSON list instead of tables; with --watch, one line per second."""
    episodes: bool = False
    """With --json: print one object that also contains active rollouts and collections."""
    play: bool = False
    """Print only the play token, with which agents and other callers play in the run, but do not control it."""
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
    if options.play:
        print(uvloop.run(_play_token(options)))
        return EXIT_DONE
    if not options.watch:
        return uvloop.run(_show_once(options))
    with contextlib.suppress(KeyboardInterrupt):  # the normal end of --watch
        uvloop.run(_watch(options))
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


async def _play_token(options: StatusOptions) -> str:
    token = options.token or variable(os.environ, "ROLLYARD_TOKEN")
    if token is None:
        transport = HttpTransport()
        try:
            token = (await _find(transport, options, on_stderr)).token
        finally:
            await transport.close()
    if not token:
        raise OperatorError("this run has no token, so that whoever may call it may control it: start it with --token")
    try:
        return play_token(token)
    except ValueError as error:
        raise OperatorError(f"no play token: {error}") from error


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
                    display.update(view(snapshot, screen), refresh=True)
        else:
            async for snapshot in _poll(transport, options, print_line):
                screen.print(view(snapshot, screen), Text())
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
    head = await _find(transport, options, print_line)
    return await (fetch_nemo_gym_snapshot if head.stack == "nemo_gym" else fetch_snapshot)(transport, head)


async def _find(transport: HttpTransport, options: StatusOptions, print_line: PrintLine) -> HeadFile:
    token = options.token or variable(os.environ, "ROLLYARD_TOKEN")
    address = head_address(options.head, options.head_server)
    return await find_run(transport, Path.cwd(), address, token, print_line, nemo_gym=True)


def _json(snapshot: RunSnapshot | str, options: StatusOptions, style: int) -> str:
    if isinstance(snapshot, str):
        return orjson.dumps({"note": snapshot}).decode()
    shown = snapshot if options.episodes else snapshot.servers
    return orjson.dumps(shown, option=style, default=lambda record: record.model_dump(by_alias=True)).decode()


def _console() -> Console:
    return console(sys.stdout, width=None if is_terminal(sys.stdout) else 200, highlight=False)


WIDE = 160
NARROW = 100
MAX_EPISODES = 10
STALE_S = 10.0
"""A running collection that has not reported for this long is shown as silent."""


def view(snapshot: RunSnapshot | str, console: Console) -> RenderableType:
    if isinstance(snapshot, str):
        return Text(snapshot)
    wide = console.width >= WIDE
    ready = sum(instance.ready for instance in snapshot.servers)
    title = "a stack of NeMo Gym" if snapshot.stack == "nemo_gym" else f"run {snapshot.run_id}"
    parts: list[RenderableType] = [
        _servers(snapshot.servers, wide, counted=snapshot.stack == "rollyard"),
        Text(plain_line(f"{title}, head {snapshot.head}: {ready} of {len(snapshot.servers)} ready")),
    ]
    origins = {instance.server_name: instance.origin for instance in snapshot.servers if instance.origin}
    parts += [Text(plain_line(f"{name}: {origin}")) for name, origin in origins.items()]
    down = [one for one in snapshot.servers if _is_down(one) and one.phase]
    parts += [_alarm(f"{one.server_name} does not respond: {one.phase}") for one in down]
    parts += [_alarm(text) for text in dict.fromkeys(one.bottleneck for one in snapshot.servers if one.bottleneck)]
    running = [collection for collection in snapshot.collections if _is_running(collection, snapshot.time)]
    for collection in running or snapshot.collections[:1]:
        parts += [Text(), Text("\n".join(map(plain_line, _lines(collection, snapshot.time))))]
    if snapshot.total:
        parts += [Text(), _stages(snapshot.stages)]
    if snapshot.stuck:
        parts += [Text(), *map(_alarm, snapshot.stuck)]
    if snapshot.episodes:  # last, because --watch cuts off the end in a short terminal
        parts += [Text(), _oldest(snapshot, console.width < NARROW)]
    return Group(*parts)


def _alarm(sentence: str) -> Text:
    return Text(plain_line(f"! {sentence}"), style="bold")


def _is_down(instance: ServerInstance) -> bool:
    return instance.status == "connection_error"


def _state(instance: ServerInstance) -> str:
    """Return whether a server is ready, or what it waits for. Why one is down is too long for the table."""
    state = "yes" if instance.ready else instance.status
    return state if _is_down(instance) or not instance.phase else f"{state}, {instance.phase}"


def _servers(instances: Iterable[ServerInstance], wide: bool, *, counted: bool) -> Table:
    """`counted`: whether the head counts requests, sessions and restarts."""
    titles = ("name", "family", "url", "ready") if wide else ("name", "port", "ready")
    numbers = (
        ("uptime", "requests", "req/s", "cpu", "in flight", "sessions", "restarts")
        if wide
        else ("up", "reqs", "/s", "cpu", "busy", "open", "rest.")
    )
    table = _table(titles, numbers if counted else numbers[:1], gap=2 if wide else 1)
    for instance in instances:
        address = (
            (f"{instance.server_type}/{instance.name}", instance.url or "") if wide else (str(instance.port or ""),)
        )
        _row(
            table,
            instance.server_name,
            *address,
            _state(instance),
            duration(instance.uptime_seconds) if wide else _format_uptime(instance.uptime_seconds),
            *(_counters(instance) if counted else ()),
        )
    return table


def _counters(instance: ServerInstance) -> tuple[object, ...]:
    rate = instance.requests_per_s
    shown_rate = f"{rate:.1f}" if rate < 100 else round(rate)
    cpu = f"{instance.cpu:.0%}"
    return instance.requests, shown_rate, cpu, instance.in_flight, instance.sessions, instance.restarts


def _stages(stages: Iterable[StageActivity]) -> Table:
    table = _table(("stage", "waits for"), ("rollouts", "usual", "longest"))
    for stage in stages:
        usual = "" if stage.median_s is None else _format_stage_s(stage.median_s)
        _row(table, stage.stage, stage.server, stage.episodes, usual, _format_stage_s(stage.slowest.stage_s))
    return table


def _oldest(snapshot: RunSnapshot, narrow: bool) -> Group:
    shown = snapshot.episodes[:MAX_EPISODES]
    rest = f", the oldest {len(shown)}" if snapshot.total > len(shown) else ""
    table = _table((), ("task", "repeat", "turn", "age", "in stage"), ("stage",) if narrow else ("stage", "waits for"))
    for episode in shown:
        _row(
            table,
            _number(episode.task),
            _number(episode.repeat),
            episode.turn,
            _format_stage_s(episode.age_s),
            _format_stage_s(episode.stage_s),
            f"{episode.stage}, stuck" if episode.stuck else episode.stage,
            *(() if narrow else (episode.server,)),
        )
    return Group(Text(f"{snapshot.total} rollouts running{rest}:"), table)


def _is_running(collection: Collection, now: float) -> bool:
    return collection.status.state == "running" and now - collection.status.updated < STALE_S


def _lines(collection: Collection, now: float) -> Iterator[str]:
    status = collection.status
    runs = _is_running(collection, now)
    silent = status.state == "running" and not runs
    state = f"silent for {duration(now - status.updated)}" if silent else status.state
    yield f"{collection.output}: {state}"
    parts = [f"{status.measured} of {status.expected} measured"]
    if status.successes is not None and status.measured:
        parts.append(f"success {status.successes / status.measured:.1%}")
    if status.mean_reward is not None:
        parts.append(f"reward {status.mean_reward:.2f}")
    parts.append(f"{status.rollouts_per_s:.1f}/s")
    if runs:
        if status.eta_s is not None:
            parts.append(f"{duration(status.eta_s)} left")
        limit = "" if status.concurrency is None else f" of {status.concurrency}"
        parts.append(f"{status.in_flight}{limit} in flight, the oldest for {duration(status.oldest_s)}")
    yield "  " + ", ".join(parts)
    width = max(map(len, status.datasets), default=0)
    for name, found in status.datasets.items():
        solved = (
            "" if found.successes is None or not found.measured else f"success {found.successes / found.measured:.1%}, "
        )
        yield f"  {name:<{width}}  {found.measured} measured, {solved}reward {found.mean_reward:.2f}"
    if status.failed_attempts:
        kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(status.failures).most_common())
        yield f"  {status.failed_attempts} attempts failed ({kinds}), {status.failed} rollouts abandoned"
    if status.note:
        yield f"  {status.note}"


def _table(left: Iterable[str], right: Iterable[str], more: Iterable[str] = (), gap: int = 2) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    for title in left:
        table.add_column(title, no_wrap=True)
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    for title in more:
        table.add_column(title, no_wrap=True)
    return table


def _row(table: Table, *cells: object) -> None:
    # Text instead of str, because a name may contain brackets, which rich parses as markup.
    table.add_row(*(Text(plain_line(str(cell))) for cell in cells))


def _number(index: int | None) -> str:
    return "" if index is None else str(index)


def _format_stage_s(seconds: float) -> str:
    """Format the duration of a stage; some take only milliseconds."""
    return f"{1000 * seconds:.0f} ms" if seconds < 0.9995 else duration(seconds)


def _format_uptime(seconds: float) -> str:
    """Format an uptime as `42s`, `12m`, `2h` or `3d`, for narrow terminals."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
