"""ng_viewer: shows rollout files or a training run in a local web page, or exports files to a single HTML file."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import uvloop
from pydantic import Field

from rollyard.analysis.viewer.app import Viewer, ViewerSettings
from rollyard.analysis.viewer.export import ExportView, export
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.responses import ViewerAccessMiddleware
from rollyard.analysis.viewer.series import SeriesSource, files_as_series, training_series
from rollyard.analysis.viewer.token_texts import TokenDecoder, load_tokenizer
from rollyard.analysis.viewer.training import TrainingFolder, TrainingIndex
from rollyard.cli.file_steps import file_steps
from rollyard.cli.options import TlsOptions, listening_token, read_options, rollout_files, run_command
from rollyard.records.errors import Failure, OperatorError, RunError
from rollyard.records.jsonl import replace
from rollyard.records.replay import Replay
from rollyard.records.rollout_file import check_output, named_files
from rollyard.records.run_types import HeadFile, ServerInstance
from rollyard.records.script import EXIT_DONE
from rollyard.records.types import Json
from rollyard.records.variables import variable
from rollyard.services.config import plugins
from rollyard.services.config.plugins import FAMILIES, search_roots
from rollyard.services.head.registry_client import RunSnapshot, fetch_instances, fetch_snapshot
from rollyard.services.http.access import Access, KnownHosts, is_loopback, origin_of
from rollyard.services.http.listener import bind, listening
from rollyard.services.http.tls import ServerCertificate
from rollyard.services.http.transport import HttpTransport, Transport
from rollyard.services.runtime.exposure import owner_of_port
from rollyard.services.runtime.run_dir import find_run

log = logging.getLogger(__name__)
EXAMPLE = "ng_viewer results/base.jsonl results/trained.jsonl"
FIRST_PORT = 8080
_PORTS = 100
_DEADLINE_S = 2.0
"""How long a server of the run may take to answer."""
REPLAY_FILE = "replay.py"
_ReplayFunction = Callable[[Json], Replay | None]
_EVERY_ADDRESS = ("0.0.0.0", "::")

_THROUGH_SSH = "drop --host and open the page through ssh -L 8080:127.0.0.1:8080"


class ViewerOptions(TlsOptions):
    SUBJECT: ClassVar[str] = "jsonl_fpath"
    EXPRESSIONS: ClassVar[Collection[str]] = ("view",)

    jsonl_fpath: list[Path] = Field(default_factory=list)
    """Rollout files, which may still be growing."""
    names: list[str] = Field(default_factory=list)
    """Names of the files in the viewer; default: the file names."""
    steps: list[int] = Field(default_factory=list)
    """Training steps of the files, which are then shown as a series; default: those in their names, folders or
    manifests (step_25.jsonl, checkpoint-25/rollouts.jsonl)."""
    pass_threshold: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum reward that counts as solved; default: the environment's `success`, or 1 if all rewards are in 0..1."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address other than loopback requires a token."""
    port: int | None = Field(default=None, ge=0, le=65535)
    """Port to listen on; 0: any free port; default: the first free port from 8080."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Additional host names to accept, such as that of a proxy in front of the viewer."""
    allow_other_users: bool = False
    """Without a token: show the page to all users of this host, not only to root and the user who started it."""
    token: str | None = None
    """Token that browsers must send; also read from the environment variable ROLLYARD_TOKEN, except on loopback."""
    server_roots: list[Path] = Field(default_factory=list)
    """Additional folders to search for environments whose replay.py draws their boards."""
    author: str | None = Field(default=None, min_length=1, max_length=80)
    """Author of the labels, verdicts and notes that are written in the page; default: your user name. A person can
    choose another name in the page."""
    read_only: bool = False
    """Write no notes: the page shows those that exist."""
    tokenizer: str | None = None
    """Gives texts to tokens that are recorded as ids only: the folder of a model, a tokenizer.json, or the name of a
    model on the Hugging Face Hub. Needs the extra `tokens`."""
    head: str | None = None
    """HOST:PORT of the head whose run the live page shows; default: the newest run started from this folder."""
    workers: int | None = Field(default=None, ge=1)
    """Number of processes that read a large file; default: one per CPU."""
    export: Path | None = None
    """Write the pages to a single HTML file that works without a server, and exit."""
    export_limit: int = Field(default=200, ge=1)
    """Maximum number of rollouts per file in the export: the best, the worst, failed ones, and some in between."""
    view: str = ""
    """Columns, order and filters of the export's list: the part of the list's address after `?`. The first rollouts in
    this order are exported."""


def main() -> None:
    run_command("ng_viewer", ViewerOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Show rollouts in a browser: metrics, lists, conversations, boards, tokens, comparisons and the active run.

    Files and folders of evaluations may be named without an option. The folder of a training run shows its curves
    and the rollouts of each step: `ng_viewer results/my_training`.
    """
    options, _ = read_options(ViewerOptions, arguments)
    logging.basicConfig(level=logging.WARNING, format="ng_viewer: %(message)s")
    file_index, series = _index(options.jsonl_fpath, options)
    replays = Replays(search_roots(Path.cwd(), options.server_roots))
    decoder = None if options.tokenizer is None else load_tokenizer(options.tokenizer, _warn)
    if options.export is not None:
        check_output(options.export, [run.path for run in file_index.runs])
        return _export(file_index, replays, options.export, options.export_limit, options.view, decoder)
    token = listening_token(options.host, options.token, "the rollouts", _THROUGH_SSH)
    files = options.tls()
    certificate = None if files is None else ServerCertificate(files)
    with _socket(options) as sock:
        uvloop.run(_serve(options, file_index, series, replays, decoder, sock, token, certificate))
    return EXIT_DONE


def _index(given: Sequence[Path], options: ViewerOptions) -> tuple[FileIndex, SeriesSource]:
    """Return the index of the files, or of a training run, and its series. Raises OperatorError if they cannot be shown
    together.
    """
    common: dict[str, Any] = {
        "version": version("rollyard"),
        "threshold": options.pass_threshold,
        "workers": options.workers,
    }
    run = next((path for path in given if path.is_dir() and TrainingFolder(path).is_training_run), None)
    if run is None:
        files = named_files(rollout_files(given), options.names)
        known = file_steps([path for _, path in files], options.steps)
        # Without steps, the order of the files takes their place, for those who open the address of the series.
        in_order = sorted(zip(known or range(len(files)), files, strict=True))
        files = [file for _, file in in_order]
        index = FileIndex(files, series=known is not None, **common)
        return index, files_as_series(files, [step for step, _ in in_order])
    if len(given) > 1:
        raise OperatorError(
            f"{str(run)!r} is a training run, which is shown alone; found {len(given)} files and folders. For "
            "curves of several runs in one picture, use python -m rollyard.analysis.charts.curves"
        )
    if options.export is not None:
        raise OperatorError(
            f"{str(run)!r} is a training run, which cannot be exported. Export the rollouts of a step "
            f"({run}/rollouts/step_....jsonl), or draw curves with python -m rollyard.analysis.charts.curves"
        )
    training = TrainingIndex(run, **common)
    return training, training_series(training.folder)


def _export(
    file_index: FileIndex, replays: Replays, path: Path, limit: int, view: str, decoder: TokenDecoder | None
) -> int:
    wanted = ExportView.of(view) if view else None
    file_index.read_through()
    try:
        page = export(file_index, replays, limit, wanted, decoder)
    finally:
        file_index.close()
    replace(path, page)
    print(f"{path} ({len(page) / 1e6:.1f} MB)")
    return EXIT_DONE


async def _serve(
    options: ViewerOptions,
    file_index: FileIndex,
    series: SeriesSource,
    replays: Replays,
    decoder: TokenDecoder | None,
    sock: socket.socket,
    token: str | None,
    certificate: ServerCertificate | None,
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    transport = HttpTransport()
    try:
        # The page shows rollouts of this folder, so it must not show a run of another folder.
        find = partial(
            find_run, transport, Path.cwd(), options.head, variable(os.environ, "ROLLYARD_TOKEN"), default=None
        )
        settings = ViewerSettings(options.author, options.read_only, options.pass_threshold, options.workers)
        origin = partial(origin_of, has_token=token is not None)
        viewer = Viewer(file_index, series, replays, decoder, FoundRun(transport, find), settings, origin)
        protected_app = ViewerAccessMiddleware(viewer.app, _access(options, token), token=token)
        async with (
            viewer,
            listening(
                protected_app, sock, certificate, ws="none", lifespan="off", timeout_graceful_shutdown=1
            ) as serving,
        ):
            print(f"{_address(options, sock, token)}\nPress Ctrl-C to stop it.", flush=True)
            if options.allow_other_users and token is None:
                print("Every user of this host can see it (--allow-other-users).", flush=True)
            await asyncio.wait({serving, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await transport.close()


def _warn(line: str) -> None:
    print(f"ng_viewer: {line}", file=sys.stderr, flush=True)


def _access(options: ViewerOptions, token: str | None) -> Access:
    names = [options.host, *options.allowed_hosts]
    if not is_loopback(options.host):
        names.append(socket.gethostname())
    hosts = KnownHosts(names, any_address=options.host in _EVERY_ADDRESS)
    # Any user who has the token may connect.
    open_to_all = options.allow_other_users or token is not None
    return Access(hosts, command="ng_viewer", other_users=open_to_all, links=True)


def _socket(options: ViewerOptions) -> socket.socket:
    ports = range(FIRST_PORT, FIRST_PORT + _PORTS) if options.port is None else [options.port]
    for port in ports:
        try:
            return bind(options.host, port)
        except OSError as error:
            failed = error
    where = f"{options.host}:{ports[0]}" + (f" to {ports[-1]}" if len(ports) > 1 else "")
    owner = owner_of_port(ports[0]) if len(ports) == 1 else ""
    raise RunError(f"cannot listen on {where}{owner}: {failed.strerror or failed}") from failed


def _address(options: ViewerOptions, sock: socket.socket, token: str | None) -> str:
    port = sock.getsockname()[1]
    shown = "127.0.0.1" if options.host == "0.0.0.0" else "::1" if options.host == "::" else options.host
    host = f"[{shown}]" if ":" in shown else shown
    scheme = "http" if options.tls_certificate_file is None else "https"
    return f"{scheme}://{host}:{port}/" + ("?token=..." if token else "")


class FoundRun:
    """The run that the live page shows: the one that `find` finds, asked through its head and its servers."""

    def __init__(self, transport: Transport, find: Callable[[], Awaitable[HeadFile]]) -> None:
        self._transport = transport
        self._find = find
        self._head: HeadFile | None = None
        """The head that was found last, whose token its servers expect."""

    async def snapshot(self) -> RunSnapshot:
        try:
            return await fetch_snapshot(self._transport, await self._find())
        except (RunError, Failure) as error:
            return RunSnapshot(time=time.time(), note=str(error))

    async def instances(self) -> list[ServerInstance]:
        self._head = await self._find()
        return await fetch_instances(self._transport, self._head)

    async def get(self, url: str) -> tuple[int, bytes]:
        head = self._head or await self._find()
        headers = {"authorization": f"Bearer {head.token}"} if head.token else {}
        response = await self._transport.send("GET", url, b"", headers, _DEADLINE_S)
        return response.status, response.body


class Replays:
    """Draws the boards of a row. If a replay.py fails, this is logged once and the page shows no boards."""

    def __init__(self, roots: Sequence[Path]) -> None:
        """`roots` lists the folders to search for plug-ins, by precedence. Plug-ins are imported on first use."""
        self._roots = roots
        self._functions: dict[str, _ReplayFunction] | None = None
        self._reported: set[str] = set()
        self._loading = threading.Lock()

    def __call__(self, row: Json) -> Replay | None:
        with self._loading:
            if self._functions is None:
                self._functions = dict(self._load())
        for name, make in self._functions.items():
            try:
                if (found := make(row)) is not None:
                    return Replay.model_validate(found)
            # Plug-ins may raise any exception, and the conversation is useful without its boards.
            except (Exception, SystemExit) as error:
                self._report(name, f"{type(error).__name__}: {error}")
        return None

    def _load(self) -> list[tuple[str, _ReplayFunction]]:
        functions: dict[str, _ReplayFunction] = {}
        for root in self._roots:
            for family in FAMILIES:
                for path in sorted((root / family).glob(f"*/{REPLAY_FILE}")):
                    name = f"{family}/{path.parent.name}"
                    if name not in functions and (make := self._replay_function(family, name, path)) is not None:
                        functions[name] = make
        return list(functions.items())

    def _replay_function(self, family: str, name: str, path: Path) -> _ReplayFunction | None:
        try:
            module: Any = plugins.import_file(family, path.parent, path)
            make: _ReplayFunction = module.replay
        except (OperatorError, AttributeError, SystemExit) as error:
            self._report(name, str(error))
            return None
        return make

    def _report(self, name: str, what: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            log.warning("%s in %s failed, so its boards are not shown: %s", REPLAY_FILE, name, what)


if __name__ == "__main__":
    main()
