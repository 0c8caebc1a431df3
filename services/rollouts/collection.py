"""Runs a collection, from its tasks to the finished files, for `ng_collect_rollouts` and `rollyard.collect`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import platform
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from rollyard.records.activity import Collection, ModelLoad
from rollyard.records.errors import Failure, OperatorError, did_you_mean
from rollyard.records.locked_files import InUse
from rollyard.records.manifest import ChangedParameters
from rollyard.records.rollout_file import RolloutPaths, real_file
from rollyard.records.rollout_keys import PROMPT, Expected, KeySet, Shard
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.run_types import Directory, ServerCode
from rollyard.records.types import CREATE_PARAMS, Json, State
from rollyard.services.datasets.mixture import DatasetTasks, TaskFile
from rollyard.services.head.registry_client import Registry, StackClients
from rollyard.services.http.loop_lag import BUSY, CpuShare
from rollyard.services.rollouts.collector import STATUS_EVERY_S, CollectionLimits, Collector
from rollyard.services.rollouts.collectors import Collectors, StartCollector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.shards import (
    Merged,
    check_idle,
    failures_of,
    is_ready_to_merge,
    known_manifest,
    merge,
    move_aside,
    remove_unbegun,
    rows_of,
    shard_files,
    sync,
)
from rollyard.services.rollouts.store import Adopter, IsFinal, JsonLines, RolloutStore, is_bad_task
from rollyard.services.rollouts.stored_rollouts import StoredRollouts, check_replay
from rollyard.services.rollouts.task_subset import TaskSubset, subset_of_original
from rollyard.services.server.settings import redacted

_BOUNDS = {"temperature": (0.0, None), "top_p": (0.0, 1.0), "max_output_tokens": (1, None), "top_logprobs": (0, 20)}
_WHOLE = frozenset(
    {
        *("max_output_tokens", "max_completion_tokens", "max_tokens", "min_tokens", "max_tool_calls", "top_logprobs"),
        *("n", "best_of", "seed", "top_k", "truncate_prompt_tokens", "prompt_logprobs"),
    }
)
"""Parameters that endpoints accept only as an integer."""
SHARE_HINT = "use several collectors (--num-collectors 2), or more jobs (--shard)"
OTHER_FILES = 200
"""Open files of a process besides the connections of episodes: its log, listener, watchers, channels, heartbeats."""
Watch = Callable[[Collector], Awaitable[State]]
_POLL_S = 0.2


@dataclass(frozen=True)
class CollectionPlan:
    output: Path
    agent: str | None = None
    """Default agent for rows without agent_ref."""
    repeats: int = 1
    seeded: bool = False
    """Send the repeat's number as the sampling seed."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Create parameters that override those in the rows."""
    resume: bool = True
    overwrite: bool = False
    accept_changed_code: bool = False
    materialize: bool = False
    """Also write the request bodies to `X_materialized_inputs.jsonl`."""
    limits: CollectionLimits = field(default_factory=CollectionLimits)
    shard: Shard | None = None
    """The share of this job if several collect the output together; None: this process collects it alone."""
    merges: bool = True
    """Whether the last job to end merges the files of all; False if the process that started the jobs does it."""
    is_final: IsFinal = is_bad_task
    """Which failures are final."""

    def __post_init__(self) -> None:
        """Make whole numbers integers. Raises OperatorError for a name that is probably a typo, for a value that is no
        integer, and for a shard that does not continue. Other unknown names are sent to the endpoint.
        """
        if self.shard is not None and (self.overwrite or not self.resume):
            raise OperatorError(
                "the jobs that share an output always continue it: drop --overwrite or --resume false, or choose "
                "another output"
            )
        object.__setattr__(self, "output", real_file(self.output))  # the class is frozen
        for name in self.params:
            if name not in CREATE_PARAMS and (hint := did_you_mean(name, CREATE_PARAMS)):
                raise OperatorError(f"unknown create parameter {name!r}{hint}")
        object.__setattr__(self, "params", with_whole_numbers(self.params))

    def with_most_parallel(self, most: int) -> CollectionPlan:
        return replace(self, limits=replace(self.limits, most_parallel=most))


class OpenCollection:
    """The open files of a collection, after its existing rollouts have been counted."""

    def __init__(
        self, plan: CollectionPlan, tasks: DatasetTasks, stack: StackClients, store: RolloutStore, settings: Json
    ) -> None:
        self.paths = store.paths
        self.store = store
        self.notes = store.notes
        """Notes for the user, shown before the collection starts."""
        self._expected = expected = _expected(tasks, plan, plan.shard)
        self.progress = CollectionProgress(expected.count)
        store.load(self.progress.count, expected)
        if plan.shard is not None:
            self._load_other_files(plan, _expected(tasks, plan))
        self.progress.failed += len(store.permanently_failed)
        self.progress.resumed()
        if isinstance(tasks, TaskSubset):
            self.notes.append(_subset_note(tasks, store.done, plan.repeats))
        if plan.shard is not None:
            total = _expected(tasks, plan).count
            self.notes.append(f"shard {plan.shard}: {expected.count} of {total} rollouts, in {self.paths.output}")
        if before := self.progress.measured:
            total = self.progress.expected
            self.notes.append(f"resuming: {before} of {total} rollouts are already in {self.paths.output}")
        self.max_turns = max_turns(settings.get(agent, {}) for agent in tasks.agents)
        self.stopped_because = ""
        """Why the collection stopped early on its own; empty otherwise."""
        self.bottlenecks: dict[str, str] = {}
        """Server name -> why it limited the speed, as a sentence; the name of this process is empty."""
        self.merged: Merged | None = None
        """The whole output, if this was the last of several jobs and merged their files."""
        self._plan = plan
        self._tasks = tasks
        self._stack = stack

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, plan: CollectionPlan, tasks: DatasetTasks, stack: StackClients, collectors: int = 1
    ) -> AsyncIterator[OpenCollection]:
        """Open the output and its sidecar files. `collectors`: processes that share the episodes of the plan.

        Raises OperatorError, RunError, or the head's Failure.
        """
        shard, notes, problem = plan.shard, list[str](), ""
        paths = RolloutPaths(shard.output(plan.output) if shard else plan.output)
        _check_inputs(paths, tasks.files)
        if shard is None and shard_files(plan.output):
            notes = await asyncio.to_thread(_take_over_shards, plan)
        if isinstance(tasks, TaskFile) and tasks.limit is None and plan.resume and not plan.overwrite:
            subset, problem = subset_of_original(tasks, RolloutPaths(plan.output), plan.agent)
            tasks = subset or tasks
        directory = await stack.client.book.refresh()
        _check_inputs(RolloutPaths(plan.output), tasks.files)
        _check_agents(tasks.agents, directory)
        is_stored = isinstance(tasks, StoredRollouts)
        if is_stored:
            check_replay(tasks.agents, directory)
        reached = reachable(tasks.agents, directory.references)
        if plan.limits.parallel is None:
            plan = plan.with_most_parallel(most_parallel(directory, reached, shard))
        else:
            check_open_files(directory, reached, plan.limits.parallel, collectors)
        code = {name: found for name, found in (await stack.registry.code()).items() if name in reached}
        identity = _identity(plan, tasks, directory, reached)
        original = tasks.original if isinstance(tasks, TaskSubset) else tasks
        file = original.file if isinstance(original, TaskFile | StoredRollouts) else None
        try:
            origin = None
            if shard is not None:
                origin = known_manifest(
                    plan.output, paths.output, identity, code, accept_changed_code=plan.accept_changed_code
                )
            store = RolloutStore(
                paths,
                identity,
                {"rollyard": version("rollyard"), "python": platform.python_version()},
                resume=plan.resume,
                overwrite=plan.overwrite,
                code=code,
                accept_changed_code=plan.accept_changed_code,
                input_path=str(file.absolute()) if isinstance(file, Path) else "",
                adopter=None if is_stored else Adopter(original, plan.repeats, plan.params, seeded=plan.seeded),
                origin=origin,
                is_final=plan.is_final,
            )
        except ChangedParameters as error:
            raise ChangedParameters(f"{error} {problem}".rstrip()) from error
        store.notes.extend(notes)
        try:
            if shard is not None:
                check_idle(plan.output, shard)  # after this shard is locked, so that of two jobs one sees the other
            yield cls(plan, tasks, stack, store, identity["settings"])
        finally:
            store.close()

    @property
    def refused(self) -> int:
        return len(self.store.permanently_failed)

    @property
    def missing(self) -> int:
        """Number of rollouts that are neither stored nor finally failed, of the tasks that were given."""
        done, failed, tasks = self.store.done, self.store.permanently_failed, self._tasks
        if not isinstance(tasks, TaskSubset):
            return self._expected.count - len(done) - len(failed)
        keys = ((task, repeat) for task in tasks.selected for repeat in range(self._plan.repeats))
        return sum(key in self._expected and key not in done and key not in failed for key in keys)

    async def run(
        self,
        watch: Watch = Collector.run,
        *,
        print_line: Callable[[str], None] = lambda text: None,
        on_rollout: Callable[[bytes], None] | None = None,
    ) -> State:
        """Collect the missing rollouts. `watch` runs the collector; `on_rollout` receives each stored line."""
        plan = self._plan
        materialized = JsonLines(self.paths.materialized) if plan.materialize else None
        try:
            rollouts = self._tasks.rollouts(plan.repeats)
            collector = Collector(
                (one for one in rollouts if (one.task_index, one.rollout_index) in self._expected),
                plan.params,
                self._stack.client,
                self.store,
                self.progress,
                plan.limits,
                seeded=plan.seeded,
                print_line=print_line,
                materialize=materialized.append if materialized else None,
                on_rollout=on_rollout,
                read_load=await self._load_reader() if plan.limits.parallel is None else None,
            )
            async with self._reporting(collector, print_line):
                state = await watch(collector)
            self.store.check()  # the files may have changed during the last report to the head
        finally:
            if materialized:
                materialized.close()
        self.stopped_because = collector.stopped_because
        if plan.shard is not None and plan.merges and len(self.store.done) + self.refused == self.progress.expected:
            await self._merge_if_last(print_line)
        if self.merged is not None:
            state = "complete" if self.merged.progress.measured == self.merged.progress.expected else "incomplete"
        return state

    async def run_collectors(
        self,
        count: int,
        start: StartCollector,
        watch: Callable[[Collectors], Awaitable[State]] = Collectors.run,
        *,
        print_line: Callable[[str], None] = lambda text: None,
    ) -> State:
        """Collect the missing rollouts with several processes, each its shard, which `start` starts; merge the files.

        The result is that of `run`. `watch` runs the collectors.
        """
        plan, store, progress = self._plan, self.store, self.progress
        store.close()  # `merge` opens the files again
        collectors = Collectors(
            plan.output,
            count,
            start,
            progress.status("running"),
            plan.limits.max_failure_rate,
            print_line=print_line,
            write_status=store.write_status,
        )
        async with self._reporting(collectors, print_line):
            state = await watch(collectors)
            merged = await asyncio.to_thread(merge, plan.output, only_idle=True)
            progress.take_over(merged.progress, collectors.status)
            self.merged = replace(merged, progress=progress)
            self.stopped_because = collectors.stopped_because
            if not self.stopped_because and progress.measured == progress.expected:
                state = "complete"
            collectors.status = progress.status(state, self.stopped_because)
            store.write_status(collectors.status)
        return state

    def _reporting(
        self, collector: Collector | Collectors, print_line: Callable[[str], None]
    ) -> AbstractAsyncContextManager[None]:
        def on_bottleneck(name: str, sentence: str) -> None:
            if name not in self.bottlenecks and self._plan.merges:  # else the process that started this one prints it
                print_line(f"note: {sentence}")
            self.bottlenecks[name] = sentence

        return reporting(
            self._stack.registry,
            self.paths.output,
            collector,
            self.store.code,
            is_part=not self._plan.merges,
            on_bottleneck=on_bottleneck,
        )

    async def _load_reader(self) -> Callable[[], Awaitable[ModelLoad | None]] | None:
        """Return how to read the load of the model servers, or None if none of them reports it, or none is called."""
        if isinstance(self._tasks, StoredRollouts):
            return None
        from rollyard.services.rollouts.concurrency import LoadReader  # most collections do not need it

        directory = await self._stack.client.book.current()
        reached = reachable(self._tasks.agents, directory.references)
        models = [name for name in sorted(reached) if directory.families.get(name) == "responses_api_models"]
        reader = LoadReader(self._stack.client, models)
        await reader.read()
        return reader.read if reader.supported else None

    def _load_other_files(self, plan: CollectionPlan, every: Expected) -> None:
        others = [path for path in shard_files(plan.output) if path != self.paths.output]
        for key, line in rows_of(plan.output, others, every):
            if key in self._expected and self.store.done.add(key):
                self.progress.count(cast(RolloutRow, line.value))
        for key, line in failures_of(plan.output, others, every):
            is_final = self.store.is_final(str(line.value.get("failure_kind")), str(line.value.get("server")))
            if key in self._expected and key not in self.store.done and is_final:
                self.store.permanently_failed.add(key)
        sync([plan.output, *others])  # this job relies on what a killed one may not have synced

    async def _merge_if_last(self, print_line: Callable[[str], None]) -> None:
        """Merge the files of all jobs if each has ended with its share complete; wait for another job that does so."""
        output, waits = self._plan.output, False
        self.store.close()  # so that of jobs that end at the same time, at least one sees no other
        while self.merged is None:
            try:
                if not await asyncio.to_thread(is_ready_to_merge, output):
                    return
                self.merged = await asyncio.to_thread(merge, output)
            except InUse as error:
                if not waits:
                    print_line(str(error))
                waits = True
                await asyncio.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def reporting(
    registry_client: Registry,
    output: Path,
    collector: Collector | Collectors,
    code: Mapping[str, ServerCode],
    *,
    is_part: bool = False,
    on_bottleneck: Callable[[str, str], None],
) -> AsyncIterator[None]:
    """Report the status of a collection, and the `code` of its servers, to the head. Its failures are ignored.

    What the head says about the servers stops the collection, or goes to `on_bottleneck`.
    """
    cpu = CpuShare()

    def current() -> Collection:
        digests = {name: found.digest for name, found in code.items()}
        status, failures = collector.status, list(collector.failures)
        path = str(output.absolute())
        return Collection(output=path, status=status, failures=failures, is_part=is_part, code=digests)

    async def report_collection() -> None:
        with contextlib.suppress(Failure):
            await registry_client.report_collection(current())

    async def check_servers() -> None:
        with contextlib.suppress(Failure):
            directory = await registry_client.directory()
            for server, sentence in directory.bottlenecks.items():
                if server in code:
                    on_bottleneck(server, sentence)
            for server, changes in directory.changed_code.items():
                if server in code:
                    collector.stop(
                        f"{server} was restarted with different code ({changes}), which its run does not allow: "
                        "restore the code and repeat the command, or restart ng_run and add --accept-changed-code"
                    )

    async def keep_reporting() -> None:
        while True:
            await asyncio.sleep(STATUS_EVERY_S)
            await report_collection()
            await check_servers()
            if isinstance(collector, Collector) and (share := cpu.sample()) >= BUSY:
                on_bottleneck("", f"this command uses {share:.0%} of a core and limits the speed: {SHARE_HINT}")

    await report_collection()
    await check_servers()
    task = asyncio.create_task(keep_reporting())
    try:
        yield
    finally:
        task.cancel()
        await report_collection()


def with_whole_numbers(params: Mapping[str, Any], key: str = "responses_create_params") -> dict[str, Any]:
    """Return `params` with integers where endpoints expect them: 1e3 is 1000.0 in YAML. Raises OperatorError."""
    whole = dict(params)
    for name in _WHOLE & params.keys():
        value = params[name]
        if isinstance(value, float) and value.is_integer():
            whole[name] = int(value)
        elif value is not None and type(value) is not int:
            raise OperatorError(f"{key}.{name} is {value!r}; expected an integer, such as 1000")
    return whole


def check_sampling(params: Mapping[str, Any], key: str = "responses_create_params") -> None:
    """Raise OperatorError for a number that no endpoint accepts. `key`: name of the setting that holds `params`."""
    for name, (least, most) in _BOUNDS.items():
        value = params.get(name)
        if value is None:
            continue
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or value < least or (most is not None and value > most):
            limits = f"{least} or more" if most is None else f"{least} to {most}"
            raise OperatorError(f"{key}.{name} is {value!r}; expected a number, {limits}")


def reachable(agents: Iterable[str], references: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the agents and all servers that their settings refer to, directly or indirectly."""
    found: set[str] = set()
    waiting = list(agents)
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += references.get(name, ())
    return found


def max_turns(settings: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the largest limit of model calls in an episode that agents have; None if one of them sets none."""
    limits = [agent.get("max_steps", agent.get("max_turns")) for agent in settings]
    known = [limit for limit in limits if isinstance(limit, int)]
    return max(known) if known and len(known) == len(limits) else None


def plan_line(tasks: int, repeats: int, missing: int, turns: int | None) -> str:
    """Return what a collection will do, as one line: rollouts and model calls."""
    rollouts = (
        f"{tasks:,} task{'s' * (tasks != 1)} x {repeats:,} = {tasks * repeats:,} rollout{'s' * (tasks * repeats != 1)}"
    )
    rest = "" if missing == tasks * repeats else f", {missing:,} of them to collect"
    calls = (
        "the agent sets no limit of model calls in a rollout"
        if turns is None
        else f"at most {missing * turns:,} model calls ({turns} a rollout), and again for each failed attempt"
    )
    return f"plan: {rollouts}{rest}; {calls}"


def _take_over_shards(plan: CollectionPlan) -> list[str]:
    """Put the rollouts of earlier jobs with shards into the output, or move them aside; return notes for the user."""
    if plan.overwrite:
        return move_aside(plan.output)
    if not plan.resume:
        raise OperatorError(
            f"{plan.output} has files of jobs that share it: continue it with --resume, or rename them and start over "
            "with --overwrite"
        )
    remove_unbegun(plan.output)
    if not shard_files(plan.output):
        return []
    merged = merge(plan.output, only_idle=True)
    return [f"the rollouts in {merged.files} files of jobs that shared {plan.output} were merged into it"]


def _expected(tasks: DatasetTasks, plan: CollectionPlan, shard: Shard | None = None) -> Expected:
    total = tasks.rollouts_in(shard) if isinstance(tasks, StoredRollouts) else None
    return Expected(tasks.count, plan.repeats, shard, total)


def _subset_note(tasks: TaskSubset, done: KeySet, repeats: int) -> str:
    other = sum(repeats - done.repeats_of(task) for task in range(tasks.count) if task not in tasks.selected)
    missing = f"; the others still lack {other} rollouts, which the original input would collect" if other else ""
    return (
        f"the input has {len(tasks.selected)} of the {tasks.count} tasks of {tasks.original.file}, with which this "
        f"output was started: only their missing rollouts are collected{missing}"
    )


def check_open_files(directory: Directory, reached: set[str], parallel: int, collectors: int = 1) -> None:
    """Raise OperatorError if this command, or a server that the rows reach, may open too few files in its processes."""
    for name, limit, each, processes in _open_files(directory, reached, collectors):
        needed = each * math.ceil(parallel / processes) + OTHER_FILES
        if needed > limit:
            own = max(len(directory.servers.get(name, ())), 1)
            where = "its process" if own == 1 else f"each of its {own} processes"
            missing = math.ceil(each * parallel / max(limit - OTHER_FILES, 1)) - processes
            mend = (
                f" and restart ng_run, set replicas: {own + missing} for it (without --colocate)"
                if name
                else f", {SHARE_HINT}"
            )
            raise OperatorError(
                f"{name or 'this command'} may open {limit} files in {where}, but {parallel} concurrent episodes need "
                f"about {needed} ({each} for each episode of a process): raise the limit (ulimit -Hn){mend}, or lower "
                "--num-samples-in-parallel"
            )


def most_parallel(directory: Directory, reached: set[str], shard: Shard | None = None) -> int:
    """Return the largest number of episodes whose files neither this process nor a server is too short of.

    Each shard gets an equal part of what the servers allow.
    """
    count = shard.count if shard else 1
    allowed = [
        (limit - OTHER_FILES) // each * processes // count
        for _, limit, each, processes in _open_files(directory, reached, count)
    ]
    return max(min(allowed, default=CollectionLimits.most_parallel), 1)


def _open_files(directory: Directory, reached: set[str], collectors: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield of this command, whose name is empty, and of each server that holds files for each episode in flight:
    name, limit of open files, files of an episode, and processes that share the episodes.

    Two processes that speak channels share one connection. An episode holds one between any other two, and one from
    a model server to its endpoint. Of several agents and environments each gets its share of the episodes; a model
    server may get all.
    """
    urls = {name: [*directory.servers.get(name, ()), *directory.quiet.get(name, ())] for name in reached}
    plain = {name for name in reached if not urls[name] or not directory.channels.issuperset(urls[name])}
    if any(directory.families[name] == "agents" for name in plain):
        yield "", resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1, collectors
    for name in sorted(reached & directory.open_files.keys()):
        family = directory.families[name]
        is_model = family == "responses_api_models"
        is_called = name in plain or any(name in directory.references.get(caller, ()) for caller in plain)
        calls = is_model or not plain.isdisjoint(directory.references.get(name, ()))
        sharing = [name] if is_model else [other for other in reached if directory.families[other] == family]
        if is_called or calls:
            processes = sum(max(len(directory.servers.get(other, ())), 1) for other in sharing)
            yield name, directory.open_files[name], is_called + calls, processes


def agents_of(directory: Directory) -> list[str]:
    return sorted(name for name, family in directory.families.items() if family == "agents")


def _check_agents(agents: set[str], directory: Directory) -> None:
    known = agents_of(directory)
    for agent in sorted(agents):
        if agent not in known:
            available = ", ".join(known) or "none"
            raise OperatorError(
                f"no agent {agent!r} in the running stack{did_you_mean(agent, known)} (available: {available})"
            )


def _check_inputs(paths: RolloutPaths, inputs: set[Path]) -> None:
    """Raise OperatorError if the output or a sidecar file is one of the input files."""
    for path in (paths.output, *paths.sidecars()):
        if path.exists() and any(file.exists() and file.samefile(path) for file in inputs):
            raise OperatorError(f"{path} is an input file of this collection; pass a different output")


def _identity(plan: CollectionPlan, tasks: DatasetTasks, directory: Directory, reached: set[str]) -> Json:
    return {
        **tasks.identity,
        "agent_name": plan.agent,
        "num_repeats": plan.repeats,
        "num_repeats_add_seed": plan.seeded,
        "responses_create_params": {
            key: value if key in PROMPT else redacted(value, key) for key, value in plan.params.items()
        },
        "settings": {name: value for name, value in directory.settings.items() if name in reached},
    }
