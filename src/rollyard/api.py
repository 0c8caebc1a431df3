"""Starts runs, collects rollouts and reads them from Python: `stack`, `connect`, `collect`, `read_rollouts`,
`annotate`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import orjson

from rollyard.analysis.annotations import Annotations
from rollyard.analysis.metrics.selection import SelectedRollouts
from rollyard.arguments import check_arguments, python_words
from rollyard.collection_summary import CollectionSummary, summary_of
from rollyard.records.data_files import DataFiles, TemporaryCopy
from rollyard.records.errors import OperatorError
from rollyard.records.foreign_files import rollout_file
from rollyard.records.note_records import user_name
from rollyard.records.rollout_file import Rollouts
from rollyard.records.rollout_keys import Shard
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.run_types import Directory
from rollyard.records.variables import variable
from rollyard.services.config.load import load
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.plugins import search_roots
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.telemetry import open_telemetry
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym import clients_of
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection, agents_of
from rollyard.services.rollouts.collector import CollectionLimits
from rollyard.services.runtime.exposure import check_exposure
from rollyard.services.runtime.run_dir import find_run
from rollyard.services.runtime.running_stack import RunningStack, StackAccess, started

log = logging.getLogger("rollyard")

PrintLine = Callable[[str], None]


def stack(
    config: str | Path | Mapping[str, Any] | Sequence[str | Path | Mapping[str, Any]],
    *overrides: str,
    colocate: bool = False,
    folder: str | Path | None = None,
    server_roots: Sequence[str | Path] = (),
    token: str | None = None,
    head_port: int = 0,
    ready_timeout_s: float = 300.0,
    print_line: PrintLine = log.info,
) -> RunningStack:
    """Return the servers of a config as an async context manager. They run until its `async with` block ends.

    `config`: one or several YAML files, or dicts with the content of such files. Files are searched for in `folder`, in
    `server_roots`, in installed packages that have the entry point `rollyard.server_roots`, then in Rollyard itself.
    `overrides`: the same as for `ng_run`, such as `"policy_model...temperature=0.5"`. `colocate`: run all servers in
    this process, on its event loop, instead of one process per server. `folder`: where the run stores its logs, and
    where commands find the run; default: the working directory. `head_port`: 0 for a free port. `print_line` is called
    with each line that `ng_run` would print.

    Raises OperatorError for an invalid config. Entering the block waits until all servers are ready, and raises
    OperatorError or RunError if they cannot be started.
    """
    check_arguments(locals())
    here = Path.cwd() if folder is None else Path(folder).absolute()
    roots = search_roots(here, server_roots)
    given = [config] if isinstance(config, str | Path | Mapping) else config
    files = [file if isinstance(file, Mapping) else str(file) for file in given]
    secret = token or variable(os.environ, "ROLLYARD_TOKEN")
    with python_words():
        loaded = load(files, parse_overrides(overrides), roots, os.environ)
        check_exposure(loaded.servers, secret, "127.0.0.1")
    return RunningStack(
        lambda: _in_python(
            started(
                loaded,
                colocate=colocate,
                folder=here,
                token=secret,
                head_port=head_port,
                ready_timeout_s=ready_timeout_s,
                environ=os.environ,
                print_line=print_line,
            )
        )
    )


@contextlib.asynccontextmanager
async def _in_python(stack: contextlib.AbstractAsyncContextManager[StackAccess]) -> AsyncIterator[StackAccess]:
    with python_words():
        async with stack as access:
            yield access


def connect(head: str | None = None, *, folder: str | Path | None = None, token: str | None = None) -> RunningStack:
    """Return a running stack, which `ng_run` or another program started, as an async context manager.

    `head`: HOST:PORT of its head; default: the newest run started from `folder`, which defaults to the working
    directory, else, with a warning, this user's run at 127.0.0.1:11000. The head may be that of a NeMo Gym stack.
    Entering the `async with` block raises RunError if no run is found. Leaving it closes the connections, but does not
    stop the run.
    """
    check_arguments(locals())
    here = Path.cwd() if folder is None else Path(folder)
    return RunningStack(lambda: _connected(head, here, token or variable(os.environ, "ROLLYARD_TOKEN")))


@contextlib.asynccontextmanager
async def _connected(head: str | None, folder: Path, token: str | None) -> AsyncIterator[StackAccess]:
    lag = LoopLag()
    transport = HttpTransport(lag=lag)
    telemetry = open_telemetry(os.environ, "collector")
    try:
        with python_words():
            found = await find_run(transport, folder, head, token, print_line=log.warning, nemo_gym=True)
        latest: list[Directory] = []

        def keep(directory: Directory) -> None:
            latest[:] = [directory]

        clients = clients_of(found, transport, lag, keep, telemetry)
        await clients.client.book.refresh()
        yield StackAccess(found, clients, lambda: latest[0])
    finally:
        await transport.close()
        if telemetry is not None:
            await telemetry.close()


async def collect(
    stack: RunningStack,
    rows: str | Path | Iterable[Mapping[str, Any]],
    out: str | Path,
    *,
    agent_name: str | None = None,
    num_repeats: int = 1,
    num_repeats_add_seed: bool = False,
    num_samples_in_parallel: int | Literal["auto"] = 32,
    limit: int | None = None,
    responses_create_params: Mapping[str, Any] | None = None,
    resume: bool = True,
    overwrite: bool = False,
    accept_changed_code: bool = False,
    max_attempts: int = 3,
    rollout_timeout_s: float = 3600.0,
    max_failure_rate: float = 0.5,
    shard: str | None = None,
    on_rollout: Callable[[RolloutRow], None] | None = None,
    print_line: PrintLine = log.info,
) -> CollectionSummary:
    """Collect `num_repeats` rollouts of every row and store them in `out`, as `ng_collect_rollouts` does.

    A failed rollout is repeated as a whole, and each rollout is stored exactly once. Repeating the same call resumes
    the collection, even if the earlier call was cancelled. The keyword arguments are the options of the command.
    `rows`: a file, or an iterable of rows. `agent_name`: the agent for rows without an `agent_ref`; optional if the
    stack has only one agent. `num_repeats_add_seed`: send the number of the repeat as the policy's seed.
    `responses_create_params`: parameters that override those of the rows. `on_rollout` is called with each rollout that
    this call collects, after it has been stored; an exception that it raises ends the collection. `shard`: `i/n`, if n
    processes collect `out` together and this is number i; the last one to end merges their files into `out`.

    Raises OperatorError and RunError with the messages that the command would print. A rollout that fails permanently
    does not raise an exception. The summary counts it, and its `state` is then not `complete`.
    """
    check_arguments(locals())
    limits = CollectionLimits(
        None if num_samples_in_parallel == "auto" else num_samples_in_parallel,
        max_attempts,
        rollout_timeout_s,
        max_failure_rate,
    )
    clients = stack.access.clients
    directory = await clients.registry.directory()
    agents = agents_of(directory)
    agent = agents[0] if agent_name is None and len(agents) == 1 else agent_name
    plan = CollectionPlan(
        Path(out),
        agent,
        num_repeats,
        seeded=num_repeats_add_seed,
        params=dict(responses_create_params or {}),
        resume=resume,
        overwrite=overwrite,
        accept_changed_code=accept_changed_code,
        limits=limits,
        shard=Shard.parse(shard),
    )
    deliver = None if on_rollout is None else lambda line: on_rollout(orjson.loads(line))
    with python_words():
        tasks = TaskFile(_file_of(rows), agent=agent, limit=limit)
        async with OpenCollection.opened(plan, tasks, clients) as collection:
            for note in collection.notes:
                print_line(note)
            state = await collection.run(print_line=print_line, on_rollout=deliver)
    found = collection.merged or collection
    return summary_of(state, found.progress, collection.stopped_because, found.paths, collection.progress)


def read_rollouts(path: str | Path, *, where: str | None = None) -> Rollouts:
    """Return an iterable over the rows of a rollout file, which may be compressed or still growing. As with ng_viewer,
    `path` may also be a trajectory in ATIF, a folder of them, or a log of inspect_ai.

    `where`: an expression, as for `ng_reward_profile`; only the measured rollouts that meet it are returned.
    `read_rollouts(path).to_pandas()` and `.to_arrow()` return tables. Raises RunError if the file does not exist, and
    OperatorError if `where` is not an expression.
    """
    check_arguments(locals())
    file = rollout_file(Path(path))
    return Rollouts(file) if where is None else SelectedRollouts(file, where)


def annotate(path: str | Path, *, author: str | None = None) -> Annotations:
    """Return the labels, verdicts and notes of a rollout file, to read and to extend; ng_viewer shows them.

    `author`: the name under which this program writes; default: your user name. Raises RunError if the file does not
    exist.
    """
    check_arguments(locals())
    return Annotations(rollout_file(Path(path)), author or user_name())


def _file_of(rows: str | Path | Iterable[Mapping[str, Any]]) -> Path | TemporaryCopy:
    """Return the file of the rows. An iterable is copied to a temporary file, because rows are read twice."""
    if isinstance(rows, str | Path):
        return DataFiles(search_roots(Path.cwd())).find(rows) or Path(rows)
    copy = TemporaryCopy("rows")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise OperatorError(f"rows: row {number} has the type {type(row).__name__}; expected a dict")
        try:
            copy.append(orjson.dumps(dict(row)) + b"\n")
        except TypeError as error:
            raise OperatorError(f"rows: row {number} cannot be written as JSON: {error}") from error
    return copy
