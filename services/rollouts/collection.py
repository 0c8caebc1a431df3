"""Runs a collection, from its tasks to the finished files, for `ng_collect_rollouts` and `rollyard.collect`."""

from __future__ import annotations

import math
import platform
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.io.rollout_paths import RolloutPaths, real_file
from rollyard.records.rollouts.code_history import reachable
from rollyard.records.rollouts.manifest import ChangedParameters
from rollyard.records.rollouts.rollout_keys import PROMPT, Expected, KeySet
from rollyard.records.run_types import Directory, ServerCode
from rollyard.records.types import Json, State
from rollyard.services.datasets.tasks import TaskFile, Tasks
from rollyard.services.head.client import Registry
from rollyard.services.http.client import ServerClient
from rollyard.services.rollouts.adoption import Adopter
from rollyard.services.rollouts.appender import JsonLines
from rollyard.services.rollouts.code_follower import CodeFollower, stale_code_notes, wait_for_reload
from rollyard.services.rollouts.collector import Collector, Limits
from rollyard.services.rollouts.final_failures import IsFinal, is_bad_task
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.sampling import with_whole_numbers
from rollyard.services.rollouts.shared.opening import check_no_workers
from rollyard.services.rollouts.shared.shared_records import MergeResult
from rollyard.services.rollouts.status_reporter import reporting
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.rollouts.task_subset import TaskSubset, subset_of_original
from rollyard.services.server.settings import redacted

CREATE_PARAMS = frozenset(
    {
        *("access_programs", "background", "context_management", "conversation", "image", "include", "input"),
        *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation"),
        *("parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "reasoning", "safety_identifier", "seed", "service_tier", "store", "stream"),
        *("stream_options", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation"),
        *("user", "top_k", "min_p", "min_tokens", "repetition_penalty"),
    }
)
"""Create parameters of OpenAI's Responses API, and `seed` and others that engines support."""


@dataclass(frozen=True)
class CollectionPlan:
    """The options of a collection."""

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
    limits: Limits = field(default_factory=Limits)
    worker: str | None = None
    """Name of this job if several collect the output together; None: this process collects it alone."""
    lease_s: float = 60.0
    """If a worker sends no heartbeat for this many seconds, others take over its unfinished blocks."""
    job: str = ""
    """Id of the batch job, shown to the other workers."""
    is_final: IsFinal = is_bad_task
    """Which failures are final. Collections by several workers always use the default."""
    block: int | None = None
    """Rollouts per lease of the first worker; None: depending on the number of rollouts."""

    def __post_init__(self) -> None:
        """Make whole numbers integers. Raises OperatorError for a name that is probably a typo, and for a value that is
        no integer. Other unknown names are sent to the endpoint.
        """
        object.__setattr__(self, "output", real_file(self.output))  # the class is frozen
        for name in self.params:
            if name not in CREATE_PARAMS and (hint := did_you_mean(name, CREATE_PARAMS)):
                raise OperatorError(f"unknown create parameter {name!r}{hint}")
        object.__setattr__(self, "params", with_whole_numbers(self.params))


@dataclass(frozen=True)
class StackClients:
    """The clients of a running stack."""

    client: ServerClient
    registry: Registry


Watch = Callable[[Collector], Awaitable[State]]


@dataclass(frozen=True)
class Prepared:
    """What a collection is made from, once none of the servers is reloading its code."""

    identity: Json
    code: dict[str, ServerCode]
    """The code of every server that the rows use."""
    input_path: str
    notes: list[str]


async def prepare(
    plan: CollectionPlan, tasks: Tasks, stack: StackClients, *, print_line: Callable[[str], None]
) -> Prepared:
    """Check the agents and the output of a collection.

    Raises OperatorError if an agent is unknown or the output is an input, and Failure if the head does not respond.
    """
    directory = await stack.client.book.refresh()
    _check_agents(tasks.agents, directory)
    _check_inputs(RolloutPaths(plan.output), tasks.files)
    reached = reachable(tasks.agents, directory.references)
    directory = await wait_for_reload(stack.registry, directory, reached, print_line=print_line)
    code = await stack.registry.code()
    return Prepared(
        _identity(plan, tasks, directory, reached),
        {name: found for name, found in code.items() if name in reached},
        _input_path(tasks),
        stale_code_notes(directory, reached),
    )


class OpenCollection:
    """The open files of a collection, after its existing rollouts have been counted."""

    def __init__(
        self, plan: CollectionPlan, tasks: Tasks, stack: StackClients, store: RolloutStore, settings: Json
    ) -> None:
        self.paths = store.paths
        self.store = store
        self.notes = store.notes
        """Notes for the user, shown before the collection starts."""
        expected = Expected(tasks.count, plan.repeats)
        self.progress = CollectionProgress(expected.count)
        store.load(self.progress.count, expected)
        self.progress.failed += len(store.permanently_failed)
        self.progress.resumed()
        if isinstance(tasks, TaskSubset):
            self.notes.append(_subset_note(tasks, store.done, plan.repeats))
        if before := self.progress.measured:
            total = self.progress.expected
            self.notes.append(f"resuming: {before} of {total} rollouts are already in {self.paths.output}")
        self.max_turns = max_turns(settings.get(agent, {}) for agent in tasks.agents)
        self.stopped_because = ""
        """Why the collection stopped early on its own; empty otherwise."""
        self.result: MergeResult | None = None
        """None: only a collection by several workers is merged."""
        self._plan = plan
        self._tasks = tasks
        self._stack = stack

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, plan: CollectionPlan, tasks: Tasks, stack: StackClients, *, print_line: Callable[[str], None]
    ) -> AsyncIterator[OpenCollection]:
        """Open the output and its sidecar files, once none of the servers is reloading its code.

        Raises OperatorError or RunError if an agent is unknown or a file cannot be used, and Failure if the head does
        not respond.
        """
        paths, problem = RolloutPaths(plan.output), ""
        _check_inputs(paths, tasks.files)
        if isinstance(tasks, TaskFile) and tasks.limit is None and plan.resume and not plan.overwrite:
            subset, problem = subset_of_original(tasks, paths, plan.agent)
            tasks = subset or tasks
        prepared = await prepare(plan, tasks, stack, print_line=print_line)
        check_no_workers(plan.output, overwrite=False)
        try:
            store = RolloutStore(
                paths,
                prepared.identity,
                {"rollyard": version("rollyard"), "python": platform.python_version()},
                resume=plan.resume,
                overwrite=plan.overwrite,
                code=prepared.code,
                accept_changed_code=plan.accept_changed_code,
                input_path=prepared.input_path,
                adopter=adopter_of(plan, tasks),
                is_final=plan.is_final,
            )
        except ChangedParameters as error:
            raise ChangedParameters(f"{error} {problem}".rstrip()) from error
        store.notes.extend(prepared.notes)
        try:
            # Again, now that the output is locked: a worker checks the lock after it has begun its round.
            if note := check_no_workers(plan.output, overwrite=plan.overwrite):
                store.notes.append(note)
            yield cls(plan, tasks, stack, store, prepared.identity["settings"])
        finally:
            store.close()

    @property
    def refused(self) -> int:
        """Number of rollouts whose tasks the environment rejected."""
        return len(self.store.permanently_failed)

    async def run(
        self,
        watch: Watch = Collector.run,
        *,
        print_line: Callable[[str], None] = lambda text: None,
        on_rollout: Callable[[bytes], None] | None = None,
    ) -> State:
        """Collect the missing rollouts. `watch` runs the collector; `on_rollout` receives each line once it is stored.

        Raises RunError if the disk is full, or another program has changed the files.
        """
        plan = self._plan
        materialized = JsonLines(self.paths.materialized) if plan.materialize else None
        try:
            collector = Collector(
                self._tasks.rollouts(plan.repeats),
                plan.params,
                self._stack.client,
                self.store,
                self.progress,
                plan.limits,
                seeded=plan.seeded,
                print_line=print_line,
                materialize=materialized.append if materialized else None,
                on_rollout=on_rollout,
            )
            registry, accept = self._stack.registry, plan.accept_changed_code
            follower = CodeFollower(registry, collector, self.store, accept=accept, print_line=print_line)
            async with reporting(registry, self.paths.output, collector, follower):
                state = await watch(collector)
            self.store.check()  # the files may have changed during the last report to the head
        finally:
            if materialized:
                materialized.close()
        self.stopped_because = collector.stopped_because
        return state


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
    rest = "" if missing == tasks * repeats else f", {missing:,} of them missing"
    calls = (
        "the agent sets no limit of model calls in a rollout"
        if turns is None
        else f"at most {missing * turns:,} model calls ({turns} a rollout), and again for each failed attempt"
    )
    return f"plan: {rollouts}{rest}; {calls}"


def has_rows(paths: RolloutPaths) -> bool:
    return paths.output.is_file() and paths.output.stat().st_size > 0


def _input_path(tasks: Tasks) -> str:
    """Return the path of the only input file, or '' if there is none or several."""
    file = tasks.original.file if isinstance(tasks, TaskSubset) else tasks.file if isinstance(tasks, TaskFile) else None
    return str(file.absolute()) if isinstance(file, Path) else ""


def adopter_of(plan: CollectionPlan, tasks: Tasks) -> Adopter:
    everything = tasks.original if isinstance(tasks, TaskSubset) else tasks
    return Adopter(everything, plan.repeats, plan.params, seeded=plan.seeded)


def _subset_note(tasks: TaskSubset, done: KeySet, repeats: int) -> str:
    other = sum(repeats - done.repeats_of(task) for task in range(tasks.count) if task not in tasks.selected)
    missing = f"; the others still lack {other} rollouts, which the original input would collect" if other else ""
    return (
        f"the input has {len(tasks.selected)} of the {tasks.count} tasks of {tasks.original.file}, with which this "
        f"output was started: only their missing rollouts are collected{missing}"
    )


def check_file_limit(limit: int, parallel: int) -> None:
    """Raise OperatorError if this process may not open enough files. It has one connection per episode."""
    needed = parallel + 100
    if limit < needed:
        raise OperatorError(
            f"{parallel} concurrent episodes need about {needed} open files in this command's process, but the limit "
            f"is {limit}: raise it (ulimit -Hn), or lower --num-samples-in-parallel"
        )


def check_agent_limits(agents: Mapping[str, list[int]], parallel: int) -> None:
    """Raise OperatorError if the processes of the agents may not open enough files.

    `agents`: the limit of each agent's processes, among which the episodes are divided; each uses three sockets.
    """
    count = sum(map(len, agents.values()))
    needed = 3 * math.ceil(parallel / max(count, 1)) + 200
    for agent, limits in agents.items():
        if limits and min(limits) < needed:
            raise OperatorError(
                f"{parallel} concurrent episodes need about {needed} open files in each process of {agent}, which has "
                f"{len(limits)}, but the limit is {min(limits)}: raise it (ulimit -Hn) and restart ng_run, set more "
                "replicas, or lower +num_samples_in_parallel"
            )


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


def _identity(plan: CollectionPlan, tasks: Tasks, directory: Directory, reached: set[str]) -> Json:
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
