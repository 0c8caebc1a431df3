"""ng_collect_rollouts: runs every row of a dataset through its agent and stores the rollouts."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import uvloop
from pydantic import Field

from rollyard.services.cli.collect_summary import summary
from rollyard.services.cli.find_run import find_run
from rollyard.services.cli.options import Options, read_options, run_command
from rollyard.services.cli.progress_bar import Display, display_for, keep_showing
from rollyard.services.config.server_code.code_history import reachable
from rollyard.services.datasets.data_files import DataFiles
from rollyard.services.datasets.mixture import Mixture
from rollyard.services.datasets.settings import read_mixture
from rollyard.services.datasets.tasks import TaskFile, Tasks
from rollyard.services.errors import OperatorError, did_you_mean
from rollyard.services.head.client import RegistryClient
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.transport import HttpTransport
from rollyard.services.io.exit_status import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rollyard.services.io.search_path import INSTALLED
from rollyard.services.rollouts.appender import JsonLines
from rollyard.services.rollouts.code_follower import CodeFollower, stale_code_notes, wait_for_reload
from rollyard.services.rollouts.collector import Collector, Limits
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.rollout_keys import Expected
from rollyard.services.rollouts.status_reporter import reporting
from rollyard.services.rollouts.store import RolloutStore, StorePaths
from rollyard.services.run_types import Directory, Keys
from rollyard.services.runtime.process_setup import raise_file_limit, tune_gc
from rollyard.services.types import Json, State

EXAMPLE = (
    "ng_collect_rollouts +agent_name=grl_sokoban_game_agent "
    "+input_jsonl_fpath=resources_servers/grl_sokoban/data/example.jsonl "
    "+output_jsonl_fpath=results/rollouts.jsonl +num_repeats=4 +responses_create_params.temperature=0.8"
)

CREATE_PARAMS = frozenset(
    {
        *("access_programs", "background", "context_management", "conversation", "image", "include", "input"),
        *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation"),
        *("parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "reasoning", "safety_identifier", "seed", "service_tier", "store", "stream"),
        *(
            "stream_options",
            "temperature",
            "text",
            "tool_choice",
            "tools",
            "top_logprobs",
            "top_p",
            "truncation",
            "user",
        ),
    }
)
"""Create parameters of OpenAI's Responses API, and `seed`, which engines support."""


class CollectOptions(Options):
    """Options of ng_collect_rollouts."""

    BELOW: ClassVar[Mapping[str, Collection[str]]] = {"responses_create_params": CREATE_PARAMS}

    input_jsonl_fpath: str | None = None
    """Dataset to run, as JSON Lines: a local file, a file of the installed package, or an s3:// address. May be
    compressed (.gz, .bz2, .xz, .zst), Parquet or Arrow."""
    data: str | dict[str, Any] | None = None
    """Or a mixture of datasets: a YAML file, or {datasets: [{name: gsm8k, path: a.jsonl, weight: 2}, ...]}."""
    output_jsonl_fpath: Path
    """Output file for rollouts; failures, manifest and status are written next to it."""
    agent_name: str | None = None
    """Agent for rows without an agent_ref."""
    limit: int | None = Field(default=None, ge=1)
    """Use only this many rows from the start."""
    num_repeats: int = Field(default=16, ge=1)
    """Rollouts per row."""
    num_repeats_add_seed: bool = False
    """Send the repeat's number to the policy as its seed."""
    num_samples_in_parallel: int = Field(default=32, ge=1)
    """Maximum number of concurrent episodes."""
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Create parameters that override those of the rows: +responses_create_params.temperature=0.8."""
    resume: bool = True
    """Resume an existing output."""
    overwrite: bool = False
    """Rename existing files and start over."""
    accept_changed_code: bool = False
    """Continue although the servers' code has changed since the output was started; new rows then have _ng_code."""
    max_attempts: int = Field(default=3, ge=1)
    """Maximum attempts per rollout, each in a new session."""
    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Timeout of one attempt."""
    max_failure_rate: float = Field(default=0.5, ge=0, le=1)
    """The collection stops if the share of abandoned rollouts exceeds this."""
    materialize_inputs: bool = False
    """Also write X_materialized_inputs.jsonl: the rows as sent to the agent."""
    head: str | None = None
    """HOST:PORT of the head; default: the run started from this folder, then this user's at 127.0.0.1:11000."""
    token: str | None = None
    """Run token, if not in the run's folder; also read from the variable ROLLYARD_TOKEN."""


def main() -> None:
    """Entry point."""
    run_command("ng_collect_rollouts", CollectOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Run every row of a dataset num_repeats times through its agent; resumable without lost or duplicate rollouts."""
    options, _ = read_options(CollectOptions, arguments)
    _check_params(options.responses_create_params)
    return uvloop.run(_run(options, _tasks(options)))


def _tasks(options: CollectOptions) -> Tasks:
    files = DataFiles([Path.cwd(), INSTALLED])
    if (options.input_jsonl_fpath is None) == (options.data is None):
        raise OperatorError("pass exactly one of +input_jsonl_fpath=rows.jsonl and +data=... (a mixture)")
    if options.input_jsonl_fpath is not None:
        file = files.find(options.input_jsonl_fpath) or Path(options.input_jsonl_fpath)
        return TaskFile(file, agent=options.agent_name, limit=options.limit)
    assert options.data is not None
    mixture = Mixture(read_mixture(options.data, files.roots), files, agent=options.agent_name, limit=options.limit)
    for note in mixture.notes:
        print(note, file=sys.stderr)
    return mixture


async def _run(options: CollectOptions, tasks: Tasks) -> int:
    _check_file_limit(raise_file_limit(), options.num_samples_in_parallel)
    lag = LoopLag()
    transport = HttpTransport(lag=lag)
    try:
        token = options.token or os.environ.get("ROLLYARD_TOKEN")
        head = await find_run(transport, Path.cwd(), options.head, token)
        keys = Keys(run_id=head.run_id, secret="", token=head.token)
        link = RegistryClient(transport, head.url, keys)
        book = AddressBook(link.directory)
        directory = await book.refresh()
        _check_agents(tasks.agents, directory)
        client = ServerClient(transport, keys, book, clock=lag.now)
        return await _collect(options, tasks, client, directory, link)
    finally:
        await transport.close()


async def _collect(
    options: CollectOptions, tasks: Tasks, client: ServerClient, directory: Directory, link: RegistryClient
) -> int:
    paths = StorePaths(options.output_jsonl_fpath)
    _check_apart(paths, tasks.files)
    reached = reachable(tasks.agents, directory.references)
    directory = await wait_for_reload(link, directory, reached, say=lambda text: print(text, file=sys.stderr))
    code = await link.code()
    store = RolloutStore(
        paths,
        _identity(options, tasks, directory, reached),
        _versions(),
        resume=options.resume,
        overwrite=options.overwrite,
        code={name: found for name, found in code.items() if name in reached},
        accept_changed_code=options.accept_changed_code,
    )
    materialized = JsonLines(paths.materialized) if options.materialize_inputs else None
    expected = Expected(tasks.count, options.num_repeats)
    progress = CollectionProgress(expected.count)
    try:
        store.load(progress.count, expected)
        progress.failed = len(store.permanently_failed)
        progress.resumed()
        display = display_for(progress.expected)
        for note in (*store.notes, *stale_code_notes(directory, reached)):
            display.say(note)
        if progress.measured:
            display.say(f"resuming: {progress.measured} of {progress.expected} rollouts are in {paths.output} already")
        collector = Collector(
            tasks.rollouts(options.num_repeats),
            options.responses_create_params,
            client,
            store,
            progress,
            Limits(
                options.num_samples_in_parallel,
                options.max_attempts,
                options.rollout_timeout_s,
                options.max_failure_rate,
            ),
            seeded=options.num_repeats_add_seed,
            say=display.say,
            materialize=materialized.append if materialized else None,
        )
        follower = CodeFollower(link, collector, store, accept=options.accept_changed_code, say=display.say)
        async with reporting(link, paths.output, collector, follower):
            state = await _watched(collector, progress, display)
        store.check()  # the final report to the head took a while
    finally:
        store.close()
        if materialized:
            materialized.close()
    summary(state, progress, paths, collector.stopped_because, len(store.permanently_failed))
    if state == "interrupted":
        return EXIT_INTERRUPTED
    return EXIT_DONE if state == "complete" else EXIT_FAILED


async def _watched(collector: Collector, progress: CollectionProgress, display: Display) -> State:
    """Run the collector with a live display. The first Ctrl-C drains it; a second one or SIGTERM ends it."""
    loop = asyncio.get_running_loop()
    asked: list[bool] = []

    def interrupt() -> None:
        if asked:
            collector.cancel()
            return
        asked.append(True)
        display.say(f"finishing the {progress.in_flight} episodes in flight; Ctrl-C again abandons them")
        collector.drain()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, collector.cancel)
    tune_gc()
    showing = asyncio.create_task(keep_showing(display, progress))
    try:
        return await collector.run()
    finally:
        showing.cancel()
        display.show(progress)
        display.close()
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def _check_params(params: Mapping[str, Any]) -> None:
    """Raise OperatorError for a parameter that resembles a known one. Other unknown ones are sent to the endpoint."""
    for name in params:
        if name not in CREATE_PARAMS and (hint := did_you_mean(name, CREATE_PARAMS)):
            raise OperatorError(f"unknown create parameter {name!r}{hint}")


def _check_file_limit(limit: int, parallel: int) -> None:
    """Raise OperatorError if the open-file limit is too low: an agent needs three sockets per episode."""
    needed = 3 * parallel + 200
    if limit < needed:
        raise OperatorError(
            f"{parallel} episodes in flight need about {needed} open files in the agent's process, "
            f"but the limit on this host is {limit}: raise it (ulimit -Hn) or lower +num_samples_in_parallel"
        )


def _check_agents(agents: set[str], directory: Directory) -> None:
    known = sorted(name for name, family in directory.families.items() if family == "agents")
    for agent in sorted(agents):
        if agent not in known:
            have = ", ".join(known) or "none"
            raise OperatorError(f"no agent {agent!r} in the running stack{did_you_mean(agent, known)} (it has: {have})")


def _check_apart(paths: StorePaths, inputs: set[Path]) -> None:
    """Raise OperatorError if an output file is also an input."""
    for path in (paths.output, *paths.sidecars()):
        if path.exists() and any(one.exists() and one.samefile(path) for one in inputs):
            raise OperatorError(f"{path} is the input; choose another output")


def _identity(options: CollectOptions, tasks: Tasks, directory: Directory, reached: set[str]) -> Json:
    return {
        **tasks.identity,
        "agent_name": options.agent_name,
        "num_repeats": options.num_repeats,
        "num_repeats_add_seed": options.num_repeats_add_seed,
        "responses_create_params": options.responses_create_params,
        "settings": {name: own for name, own in directory.settings.items() if name in reached},
    }


def _versions() -> Json:
    return {"rollyard": version("rollyard"), "python": platform.python_version()}
