"""ng_collect_rollouts: runs every row of a dataset through its agent and stores the rollouts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import uvloop
from pydantic import Field

from rollyard.cli.collection_options import CollectionOptions
from rollyard.cli.console import Display, ProblemLines, display_for, keep_showing
from rollyard.cli.options import before_end, read_options, run_command
from rollyard.records.data_files import DataFiles
from rollyard.records.errors import OperatorError
from rollyard.records.process_group import guarded
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Shard
from rollyard.records.run_types import HeadFile
from rollyard.records.scores import ClusteredMean
from rollyard.records.script import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from rollyard.records.terminal import duration, plain_line, pluralize
from rollyard.records.types import CREATE_PARAMS, CollectionStatus, State
from rollyard.records.variables import variable
from rollyard.services.config.plugins import search_roots
from rollyard.services.datasets.dataset import read_mixture
from rollyard.services.datasets.mixture import DatasetTasks, Mixture, TaskFile
from rollyard.services.http.loop_lag import LoopLag
from rollyard.services.http.telemetry import open_telemetry
from rollyard.services.http.transport import HttpTransport
from rollyard.services.interop.nemo_gym import NOTE, clients_of
from rollyard.services.rollouts.collection import (
    CollectionPlan,
    OpenCollection,
    plan_line,
)
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.collectors import CollectorProcess, Collectors
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.store import most_frequent_failure
from rollyard.services.rollouts.stored_rollouts import StoredRollouts
from rollyard.services.runtime.process_setup import raise_file_limit, tune_gc
from rollyard.services.runtime.run_dir import find_run, head_address

if TYPE_CHECKING:
    from rollyard.services.runtime.ray_launcher import RayLauncher

EXAMPLE = (
    "ng_collect_rollouts --agent-name grl_sokoban_game_agent "
    "--input-jsonl-fpath resources_servers/grl_sokoban/data/example.jsonl "
    "--output-jsonl-fpath results/rollouts.jsonl --num-repeats 4 --responses-create-params.temperature 0.8"
)


class CollectOptions(CollectionOptions):
    SUBJECT: ClassVar[str] = "input_jsonl_fpath"
    NESTED_KEYS: ClassVar[Mapping[str, Collection[str]]] = {"responses_create_params": CREATE_PARAMS}

    input_jsonl_fpath: str | None = None
    """Dataset to run: a local file, a file in the installed package, or an s3:// URL. The format is JSON Lines (also
    compressed: .gz, .bz2, .xz, .zst), Parquet or Arrow."""
    data: str | dict[str, Any] | None = None
    """Mixture of datasets to use instead of input_jsonl_fpath: a YAML file, or {datasets: [{name: gsm8k, path: a.jsonl,
    weight: 2}, ...]}."""
    agent_name: str | None = None
    """Agent for rows without an agent_ref."""
    limit: int | None = Field(default=None, ge=1)
    """Use only this many rows from the start of the dataset."""
    num_repeats: int = Field(default=1, ge=1)
    """Number of rollouts that each row has in the end; a resumed collection adds those that are missing."""
    num_repeats_add_seed: bool = False
    """Send the index of each repeat to the policy as the sampling seed."""
    num_collectors: int = Field(default=1, ge=1, le=1000)
    """Number of processes that collect the output together, each a share of the rollouts. More than one helps if this
    command is the limit, at about 25,000 turns/s."""
    ray_head_node_address: str | None = None
    """HOST:PORT of a Ray cluster, or auto: run the collectors as actors on its hosts, which share this folder."""
    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Request parameters that override those in the rows, such as --responses-create-params.temperature 0.8."""
    materialize_inputs: bool = False
    """Also write X_materialized_inputs.jsonl, which contains the rows as they are sent to the agent."""


def main() -> None:
    run_command("ng_collect_rollouts", CollectOptions, EXAMPLE, run)


def run(arguments: Sequence[str]) -> int:
    """Run every row of a dataset num_repeats times through its agent.

    An interrupted collection can be resumed without losing or repeating rollouts.
    """
    options, _ = read_options(CollectOptions, arguments)
    plan = _plan(options)
    _check_collectors(options, plan.limits.parallel)
    tasks = _tasks(options, partial(print, file=sys.stderr))
    several = options.num_collectors > 1 or options.ray_head_node_address is not None
    starter = CollectorStarter(options, arguments) if several else None
    return uvloop.run(run_collection(options, tasks, plan, starter, options.num_collectors))


def collector_main() -> None:
    """Run one of the collectors of a command that has several. It prints only problems, which that command shows."""
    run_command("ng_collect_rollouts", CollectOptions, EXAMPLE, _run_collector)


def _run_collector(arguments: Sequence[str]) -> int:
    options, _ = read_options(CollectOptions, arguments)
    return uvloop.run(run_collection(options, _tasks(options), replace(_plan(options), merges=False)))


def _check_collectors(options: CollectOptions, parallel: int | None) -> None:
    name = "--ray-head-node-address" if options.ray_head_node_address else "--num-collectors"
    if options.shard is not None and (options.num_collectors > 1 or options.ray_head_node_address):
        raise OperatorError(f"{name} and --shard exclude each other: each job is one collector, on its host")
    if parallel is not None and options.num_collectors > parallel:
        raise OperatorError(
            f"--num-collectors is {options.num_collectors}, more than the {parallel} concurrent episodes "
            "of --num-samples-in-parallel: each collector needs at least one"
        )


def _plan(options: CollectOptions) -> CollectionPlan:
    return replace(
        plan_of(options, options.agent_name, options.num_repeats),
        seeded=options.num_repeats_add_seed,
        params=options.responses_create_params,
        materialize=options.materialize_inputs,
    )


def plan_of(options: CollectionOptions, agent: str | None, repeats: int) -> CollectionPlan:
    return CollectionPlan(
        options.output_jsonl_fpath,
        agent,
        repeats,
        resume=options.resume,
        overwrite=options.overwrite,
        accept_changed_code=options.accept_changed_code,
        limits=_limits(options),
        shard=Shard.parse(options.shard),
    )


def _limits(options: CollectionOptions) -> CollectionLimits:
    return CollectionLimits(
        None if options.num_samples_in_parallel == "auto" else options.num_samples_in_parallel,
        options.max_attempts,
        options.rollout_timeout_s,
        options.max_failure_rate,
        partial_bytes=options.max_partial_bytes,
    )


def _tasks(options: CollectOptions, print_note: Callable[[str], None] = lambda note: None) -> DatasetTasks:
    files = DataFiles(search_roots(Path.cwd()))
    if (options.input_jsonl_fpath is None) == (options.data is None):
        raise OperatorError("pass exactly one of --input-jsonl-fpath rows.jsonl and --data ... (a mixture)")
    if options.input_jsonl_fpath is not None:
        file = files.find(options.input_jsonl_fpath) or Path(options.input_jsonl_fpath)
        return TaskFile(file, agent=options.agent_name, limit=options.limit)
    assert options.data is not None
    mixture = Mixture(read_mixture(options.data, files.roots), files, agent=options.agent_name, limit=options.limit)
    for note in mixture.notes:
        print_note(note)
    return mixture


async def run_collection(
    options: CollectionOptions,
    tasks: DatasetTasks,
    plan: CollectionPlan,
    starter: CollectorStarter | None = None,
    count: int = 1,
) -> int:
    """Collect and print the summary; return the exit status. `starter`: starts `count` processes that collect."""
    is_part = not plan.merges
    raise_file_limit()
    lag = LoopLag()
    transport = HttpTransport(lag=lag)
    telemetry = open_telemetry(os.environ, "collector")
    try:
        token = options.token or variable(os.environ, "ROLLYARD_TOKEN")
        address = head_address(options.head, options.head_server)
        head = await find_run(transport, Path.cwd(), address, token, nemo_gym=True)
        if head.stack == "nemo_gym" and not is_part:
            print(NOTE.format(url=head.url), file=sys.stderr)
        stack = clients_of(head, transport, lag, telemetry=telemetry)
        async with (
            starter.connected(head) if starter else contextlib.nullcontext(),
            OpenCollection.opened(plan, tasks, stack, count) as collection,
        ):
            progress = collection.progress
            display = ProblemLines() if is_part else display_for(progress.expected)
            missing = collection.missing
            if not is_part:
                for note in collection.notes:
                    display.print_line(note)
                if missing and isinstance(tasks, StoredRollouts):
                    answers = f"{missing:,} of {pluralize(len(tasks), 'stored rollout')}"
                    display.print_line(f"plan: {answers} to verify; the model is not called")
                elif missing:
                    display.print_line(plan_line(tasks.count, plan.repeats, missing, collection.max_turns))
            watch = partial(_collect, progress, display)
            if missing and starter is not None:
                state = await collection.run_collectors(count, starter.start, watch, print_line=display.print_line)
            else:
                state = await collection.run(watch, print_line=display.print_line)
        if not is_part:
            found = collection.merged or collection
            unmerged = plan.output if plan.shard and collection.merged is None else None
            why, limits = collection.stopped_because, list(collection.bottlenecks.values())
            summary(state, found.progress, found.paths, why, found.refused, unmerged, limits)
    finally:
        await transport.close()
        if telemetry is not None:
            await telemetry.close()
    if state == "interrupted":
        return EXIT_INTERRUPTED
    return EXIT_DONE if state == "complete" else EXIT_FAILED


class CollectorStarter:
    """Starts the collector of a shard, which is this command with some options changed."""

    def __init__(self, options: CollectOptions, arguments: Sequence[str]) -> None:
        self._options = options
        self._arguments = arguments
        self._head_url = ""
        self._environ = dict(os.environ)
        self._launcher: RayLauncher | None = None

    @contextlib.asynccontextmanager
    async def connected(self, head: HeadFile) -> AsyncIterator[Self]:
        """Connect to the Ray cluster on which the collectors run, if they do. Raises OperatorError or RunError."""
        self._head_url = head.url
        if head.token:
            self._environ["ROLLYARD_TOKEN"] = head.token
        if self._options.ray_head_node_address is None:
            yield self
            return
        from rollyard.services.runtime.ray_launcher import on_cluster  # with it, the import takes a tenth longer

        async with on_cluster(self._options.ray_head_node_address, Path()) as self._launcher:
            yield self

    async def start(self, shard: Shard, write: Callable[[bytes], None]) -> CollectorProcess:
        code = "from rollyard.cli.collect_rollouts import collector_main; collector_main()"
        command = [sys.executable, "-P", "-c", code, *self._words(shard)]
        if self._launcher is not None:
            return await self._launcher.run("collector", command, self._environ, write)
        return await LocalCollector.start(command, self._environ, write)

    def _words(self, shard: Shard) -> list[str]:
        parallel = self._options.num_samples_in_parallel
        if parallel != "auto":
            every, rest = divmod(parallel, shard.count)
            parallel = every + (shard.number <= rest)
        changed = {
            "shard": shard,
            "num_samples_in_parallel": parallel,
            "num_collectors": 1,
            "max_failure_rate": 1.0,  # decided for all collectors together
            "ray_head_node_address": "null",
            "resume": "true",
            "overwrite": "false",
        }
        if self._options.head is None and self._options.head_server is None:
            changed["head"] = self._head_url
        given = before_end(self._arguments)
        return [*given, *(f"+{name}={value}" for name, value in changed.items()), *self._arguments[len(given) :]]


class LocalCollector:
    """A collector on this host, which dies with this process."""

    def __init__(self, process: asyncio.subprocess.Process, write: Callable[[bytes], None]) -> None:
        self._process = process
        self._ended = asyncio.create_task(self._follow(write))

    @classmethod
    async def start(cls, command: Sequence[str], environ: Mapping[str, str], write: Callable[[bytes], None]) -> Self:
        process = await asyncio.create_subprocess_exec(
            *guarded(command),
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
        )
        return cls(process, write)

    def send(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def wait(self) -> int:
        return await self._ended

    async def _follow(self, write: Callable[[bytes], None]) -> int:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(1 << 16):
            write(data)
        return await self._process.wait()


async def _collect(progress: CollectionProgress, display: Display, collector: Collector | Collectors) -> State:
    """Run the collector with a live display.

    After the first Ctrl-C or SIGUSR1, which batch systems send before a time limit, episodes in flight still finish; a
    second one, or SIGTERM, cancels them.
    """
    loop = asyncio.get_running_loop()
    interrupted = False

    def current() -> CollectionStatus:
        return collector.status if isinstance(collector, Collectors) else progress.status("running")

    def interrupt() -> None:
        nonlocal interrupted
        if interrupted:
            collector.cancel()
            return
        interrupted = True
        if not isinstance(display, ProblemLines):
            count = f"{current().in_flight} " if current().in_flight else ""  # 0 until all collectors have reported
            display.print_line(f"finishing the {count}episodes in flight; Ctrl-C again abandons them")
        collector.drain()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGUSR1, interrupt)
    loop.add_signal_handler(signal.SIGTERM, collector.cancel)
    tune_gc()
    showing = asyncio.create_task(keep_showing(display, current))
    try:
        return await collector.run()
    finally:
        showing.cancel()
        display.show(current())
        display.close()
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            loop.remove_signal_handler(number)


def summary(
    state: State,
    progress: CollectionProgress,
    paths: RolloutPaths,
    why: str,
    refused: int,
    unmerged: Path | None = None,
    bottlenecks: Sequence[str] = (),
) -> None:
    """Print the summary of a collection.

    `why`: why the collection stopped early; empty if it did not.
    `refused`: number of rollouts whose tasks the environment rejected. `unmerged`: the output of which this job has
    collected a share, if it has not merged the shards. `bottlenecks`: what limited the speed, as sentences.
    """
    complete = progress.measured == progress.expected
    print(f"{'collected' if complete else state}: {progress.measured} of {progress.expected} rollouts measured")
    if why:
        print(f"  stopped       {plain_line(why)}")
    _print_means(progress)
    if progress.collected:
        print(f"  speed         {progress.rate:.1f} rollouts/s, {progress.collected} in {duration(progress.elapsed_s)}")
    for sentence in bottlenecks:
        print(f"                {plain_line(sentence)}")
    if found := progress.concurrency:
        print(f"  concurrency   {found.limit} was found ({found.why})")
    print(f"  rollouts      {paths.output}")
    abandoned = progress.failed - progress.masked
    if progress.failed_attempts or abandoned:
        kinds = ", ".join(f"{kind} {count}" for kind, count in progress.kinds.most_common()) or "of an earlier command"
        failed = f"{progress.failed_attempts} attempts failed ({kinds}), {abandoned} rollouts abandoned"
        print(f"  failures      {failed}")
        if common := most_frequent_failure(paths.failures):
            print(f"                {common}")
        print(f"                {paths.failures}")
    missing = progress.expected - progress.measured
    if refused:
        print(f"  refused       {refused} rollouts were rejected by the environment (bad_task); see the failures file")
    if masked := progress.masked:
        reason = "their environment or agent says that they have no score (mask_sample, failure_kind)"
        print(f"  masked        {pluralize(masked, 'rollout')} in the file: {reason}")
    if (open_count := missing - refused - masked) > 0:
        changed = "restart ng_run if you changed a server's code; " if progress.kinds["server_error"] else ""
        print(f"  next          {changed}repeat the command to collect the {open_count} missing rollouts")
    elif not missing and unmerged is not None:
        print("  next          the last of the jobs merges their files; if it was killed:")
        print(f"                ng_merge {unmerged}")
    elif not missing:
        print(f"  next          ng_reward_profile {paths.output}  (a report)")
        print(f"                ng_viewer {paths.output}  (the rollouts, in a browser)")


def _print_means(progress: CollectionProgress) -> None:
    means = progress.means()
    names = {name: plain_line(name) for name in means.datasets}
    width = max(map(len, names.values()), default=0)
    for name, (mean, success) in means.datasets.items():
        solved = "" if success is None else f"success {_rate(success, progress.scores.parts[name].solved)}, "
        print(f"  {names[name]:<{width}}  {solved}mean reward {_mean(mean)}, {pluralize(mean.tasks, 'task')}")
    if means.success is not None:
        print(f"  success rate  {_rate(means.success, progress.successes or 0)}")
    if means.reward is not None:
        print(f"  mean reward   {_mean(means.reward)}")
    elif means.why_no_reward:
        print(f"  mean reward   not averaged over all datasets: {plain_line(means.why_no_reward)}")
    if any(one and one.stderr is not None for one in (means.success, means.reward)):
        print("                ± is one SE, clustered by task")


def _rate(found: ClusteredMean, solved: int) -> str:
    """Format a rate with its standard error, or, if it is 0% or 100%, with a confidence interval."""
    counted = f"({solved} / {found.rollouts})"
    if found.stderr is not None:
        return f"{found.value:.2%} ± {found.stderr:.2%} {counted}"
    if (interval := found.share_interval) is None:
        return f"{found.value:.2%} {counted}"
    return f"{found.value:.2%} {counted}, 95% interval {interval[0]:.2%} to {interval[1]:.2%}"


def _mean(found: ClusteredMean) -> str:
    from rollyard.analysis.report.formatting import reward  # takes numpy along, which nothing before the summary needs

    error = "" if found.stderr is None else f" ± {reward(found.stderr)}"
    return f"{reward(found.value)}{error}"
