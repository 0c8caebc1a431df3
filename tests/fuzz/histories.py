"""Random histories of a collection: jobs that start, collect, fail, are killed and end, in shards or alone, merges, and
files that others edit. The output always holds what was acknowledged, once, and a damaged file is named.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    get_state_machine_test,
    invariant,
    precondition,
    rule,
)

from rollyard.records.activity import Collection
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import InUse
from rollyard.records.rollout_file import RolloutPaths
from rollyard.records.rollout_keys import Key, Shard
from rollyard.records.run_types import Directory, ServerCode
from rollyard.records.types import FailureRow, State
from rollyard.services.datasets.mixture import TaskFile
from rollyard.services.head.registry_client import StackClients
from rollyard.services.http.client import AddressBook, ServerClient
from rollyard.services.http.transport import HttpTransport, LocalTransport
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection
from rollyard.services.rollouts.collector import CollectionLimits, Collector
from rollyard.services.rollouts.shards import Merged, merge, shard_files
from rollyard.testing import KEYS
from tests.support.partial_runs import task, write_lines

TASKS, REPEATS = 3, 2
EVERY = [(index, repeat) for index in range(TASKS) for repeat in range(REPEATS)]
SHARES = [None, *(Shard(number, count) for count in (1, 2, 3) for number in range(1, count + 1))]
COUNTS = (0, 1, 2, len(EVERY))
DAMAGES = ("not JSON", "no reward", "a line twice", "an unknown task", "no manifest")


class Head:
    """A run with one agent, of which a collection asks nothing else."""

    async def directory(self) -> Directory:
        return Directory(run_id=KEYS.run_id, servers={"agent": []}, families={"agent": "agents"}, settings={})

    async def code(self) -> dict[str, ServerCode]:
        return {}

    async def report_collection(self, collection: Collection) -> None:
        """Nobody watches."""


@dataclass
class Job:
    shard: Shard | None
    collection: OpenCollection
    opened: AbstractAsyncContextManager[OpenCollection]

    @property
    def missing(self) -> list[Key]:
        store = self.collection.store
        known = (store.done, store.permanently_failed)
        return [key for key in EVERY if key in _share(self.shard) and not any(key in keys for keys in known)]


def _share(shard: Shard | None) -> list[Key]:
    return [key for key in EVERY if shard is None or key in shard]


def _complete_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]


class Histories(RuleBasedStateMachine):
    """The model: the acknowledged line of each key, the keys in each file, the refused ones, and the running jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Key, bytes] = {}
        self.held: dict[Path, set[Key]] = {}
        self.refused: set[Key] = set()
        self.jobs: dict[Path, Job] = {}
        self.serial = 0
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        self.output = Path(self.folder.name) / "x.jsonl"
        self.tasks = write_lines(self.output.with_name("input.jsonl"), map(task, range(TASKS)))
        client = ServerClient(LocalTransport(HttpTransport()), KEYS, AddressBook(Head().directory))
        self.stack = StackClients(client, Head())

    # --- what the model says ----------------------------------------------------------------------------------------

    @property
    def known(self) -> set[Key]:
        return set[Key]().union(*self.held.values())

    def path(self, shard: Shard | None) -> Path:
        return self.output if shard is None else shard.output(self.output)

    def forget_lost(self) -> None:
        self.lines = {key: line for key, line in self.lines.items() if key in self.known}

    def merged(self, *, removes_all: bool = False) -> None:
        self.held[self.output] = self.known
        if removes_all or self.known | self.refused == set(EVERY):
            for path in [path for path in self.held if path != self.output and path not in self.jobs]:
                del self.held[path]

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def open(self, shard: Shard | None, **options: Any) -> Job:
        limits = CollectionLimits(parallel=1)
        plan = CollectionPlan(self.output, "agent", repeats=REPEATS, shard=shard, limits=limits, **options)
        tasks = TaskFile(self.tasks, agent="agent", limit=None)
        opened = OpenCollection.opened(plan, tasks, self.stack)
        return Job(shard, self.runner.run(opened.__aenter__()), opened)

    def close(self, job: Job) -> None:
        self.runner.run(job.opened.__aexit__(None, None, None))

    def startable(self, shard: Shard | None) -> bool:
        """Whether no job is running that writes the same file, or shares the output in another way."""
        others = [job.shard for job in self.jobs.values()]
        return all(shard and other and shard.count == other.count and shard != other for other in others)

    @precondition(lambda self: any(map(self.startable, SHARES)))
    @rule(data=st.data(), count=st.sampled_from(COUNTS))
    def start(self, data: st.DataObject, count: int) -> None:
        self.resume(data.draw(st.sampled_from([shard for shard in SHARES if self.startable(shard)])), count)

    def resume(self, shard: Shard | None, count: int) -> None:
        if shard is None and any(path != self.output for path in self.held):
            self.merged(removes_all=True)
        path = self.path(shard)
        self.held.setdefault(path, set())
        job = self.jobs[path] = self.open(shard)
        assert job.missing == [key for key in _share(shard) if key not in self.known | self.refused]
        assert job.collection.missing == len(job.missing)
        self.store(job, count)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def start_beside(self, data: st.DataObject) -> None:
        shard = data.draw(st.sampled_from([shard for shard in SHARES if not self.startable(shard)]))
        with pytest.raises(InUse):
            self.open(shard)
        if shard is not None:
            self.held.setdefault(self.path(shard), set())

    @precondition(lambda self: any(job.missing for job in self.jobs.values()))
    @rule(data=st.data(), count=st.sampled_from(COUNTS[1:]))
    def collect(self, data: st.DataObject, count: int) -> None:
        self.store(data.draw(st.sampled_from(self.unfinished)), count)

    @property
    def unfinished(self) -> list[Job]:
        return [self.jobs[path] for path in sorted(self.jobs) if self.jobs[path].missing]

    def store(self, job: Job, count: int) -> None:
        for key in job.missing[:count]:
            self.serial += 1
            row = {"_ng_task_index": key[0], "_ng_rollout_index": key[1], "reward": 1.0, "serial": self.serial}
            self.lines[key] = orjson.dumps(row)
            job.collection.store.append(key, self.lines[key])
            self.held[self.path(job.shard)].add(key)

    @precondition(lambda self: any(job.missing for job in self.jobs.values()))
    @rule(data=st.data(), kind=st.sampled_from(["timeout", "bad_task"]))
    def fail(self, data: st.DataObject, kind: str) -> None:
        job = data.draw(st.sampled_from(self.unfinished))
        key = data.draw(st.sampled_from(job.missing))
        self.serial += 1
        failure = FailureRow(
            task_index=key[0], rollout_index=key[1], attempt_index=0, agent_ref={}, failure_kind=kind, server="agent",
            status=500, upstream_status=None, detail="", terminal=False, abandoned=False, time=self.serial,
            duration_s=1.0,
        )  # fmt: skip
        job.collection.store.append_failure(failure)
        if kind == "bad_task":
            self.refused.add(key)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), cut=st.integers(0, 40), of_failures=st.booleans(), left=st.booleans())
    def kill(self, data: st.DataObject, cut: int, of_failures: bool, left: bool) -> None:
        """The process dies within a line that it writes, or while it replaces a file."""
        path = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs.pop(path)
        torn = orjson.dumps({"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 0.0})[:cut]
        self.close(job)  # what it wrote is in the file; closing adds nothing
        with (RolloutPaths(path).failures if of_failures else path).open("ab") as file:
            file.write(torn)
        if left:
            manifest = RolloutPaths(path).manifest
            manifest.with_name(f".{manifest.name}.99").write_bytes(b"{")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs.pop(path)
        self.finish(job)

    def finish(self, job: Job) -> None:
        async def ended(collector: Collector) -> State:
            return "incomplete" if job.missing else "complete"

        self.runner.run(job.collection.run(ended))
        self.close(job)
        complete = self.known | self.refused == set(EVERY)
        assert (job.collection.merged is not None) == (job.shard is not None and complete and not self.jobs)
        if job.collection.merged is not None:
            self.merged()

    # --- files --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.known)
    @rule(only_idle=st.booleans())
    def merge(self, only_idle: bool) -> None:
        if self.output in self.jobs or (only_idle and self.jobs):
            with pytest.raises(InUse):
                merge(self.output, only_idle=only_idle)
            return
        first = merge(self.output, only_idle=only_idle)
        self.merged(removes_all=only_idle)
        content = self.output.read_bytes()
        again = merge(self.output, only_idle=only_idle)
        assert self.output.read_bytes() == content
        for found in (first, again):
            self.check_counts(found)

    def check_counts(self, found: Merged) -> None:
        refused = self.refused - self.known
        assert (found.progress.measured, found.refused) == (len(self.known), len(refused))

    @precondition(lambda self: len(self.known) > len(EVERY) // 2)
    @rule()
    def overwrite(self) -> None:
        if self.jobs:
            before = set(self.output.parent.iterdir())
            with pytest.raises(InUse):
                self.open(None, overwrite=True)
            assert before == set(self.output.parent.iterdir())
            return
        rows = {line for path in self.held for line in _complete_lines(path)}
        job = self.open(None, overwrite=True)
        aside = [path for path in self.output.parent.iterdir() if path not in self.held and path.is_file()]
        assert rows <= {line for path in aside for line in path.read_bytes().split(b"\n")}
        self.lines, self.refused, self.held, self.jobs = {}, set(), {self.output: set()}, {self.output: job}

    @precondition(lambda self: self.known and not self.jobs)
    @rule(data=st.data())
    def lose_the_end(self, data: st.DataObject) -> None:
        """A file is cut, as after a power failure: what it has lost is collected again."""
        path = data.draw(st.sampled_from(sorted(path for path, keys in self.held.items() if keys)))
        size = data.draw(st.integers(0, path.stat().st_size - 1))
        with path.open("r+b") as file:
            file.truncate(size)
        self.held[path] = {key for key in self.held[path] if self.lines[key] in _complete_lines(path)}
        self.forget_lost()

    @precondition(lambda self: self.known and not self.jobs)
    @rule(data=st.data(), damage=st.sampled_from(DAMAGES))
    def damage(self, data: st.DataObject, damage: str) -> None:
        """Neither a merge nor a job accepts the file, and both name it. Then it is restored."""
        path = data.draw(st.sampled_from(sorted(path for path, keys in self.held.items() if keys)))
        damaged = RolloutPaths(path).manifest if damage == "no manifest" else path
        content = damaged.read_bytes()
        line = _complete_lines(path)[-1] + b"\n"
        changed = {
            "not JSON": b"{]\n",
            "no reward": line.replace(b'"reward":', b'"rewards":'),
            "a line twice": line * 2,
            "an unknown task": line.replace(b'"_ng_task_index":', b'"_ng_task_index":9'),
        }
        damaged.write_bytes(b"" if damage == "no manifest" else content.replace(line, changed[damage]))
        for refused in (lambda: merge(self.output), lambda: self.open(None)):
            with pytest.raises((RunError, OperatorError), match=damaged.name.replace(".", r"\.")):
                refused()
        damaged.write_bytes(content)
        # The merge had begun: what came before the damaged file is in the output as well.
        if self.output.exists():
            self.held[self.output] = {key for key in self.known if self.lines[key] in _complete_lines(self.output)}

    @precondition(lambda self: any(self.held[path] for path in self.jobs))
    @rule(data=st.data(), how=st.sampled_from(["renamed", "edited", "appended to"]))
    def change_underneath(self, data: st.DataObject, how: str) -> None:
        """A job whose file another program changes says so, also before it would write to it."""
        path = data.draw(st.sampled_from(sorted(path for path in self.jobs if self.held[path])))
        store, content = self.jobs[path].collection.store, path.read_bytes()
        aside = path.with_name("aside")
        if how == "renamed":
            path.rename(aside)
        elif how == "edited":
            with path.open("r+b") as file:
                file.write(b" ")
        else:
            with path.open("ab") as file:
                file.write(b"{}\n")
        with pytest.raises(RunError, match=path.name.replace(".", r"\.")):
            store.verify()
        if how == "appended to" and (missing := self.jobs[path].missing):
            with pytest.raises(RunError, match=path.name.replace(".", r"\.")):
                store.append(missing[0], b"{}")
        if how == "renamed":
            aside.rename(path)
        else:
            with path.open("r+b") as file:
                file.write(content)
                file.truncate()
        store.verify()

    @invariant()
    def each_file_holds_what_was_acknowledged_once(self) -> None:
        for path, keys in self.held.items():
            if keys or path.exists():
                assert sorted(_complete_lines(path)) == sorted(self.lines[key] for key in keys), path.name

    def teardown(self) -> None:
        try:
            self.complete()
        finally:
            for job in self.jobs.values():
                self.close(job)
            self.runner.close()
            self.folder.cleanup()

    def complete(self) -> None:
        """Whatever has happened, the same command ends with every rollout once, and without the files of others."""
        while self.jobs:
            self.close(self.jobs.popitem()[1])
        self.resume(None, len(EVERY))
        self.finish(self.jobs.pop(self.output))
        assert self.known | self.refused == set(EVERY)
        self.each_file_holds_what_was_acknowledged_once()
        assert not [*shard_files(self.output), *self.output.parent.glob(".*")]


_MANY_STEPS = settings(stateful_step_count=40, deadline=None, database=None)
_HISTORY: Any = get_state_machine_test(Histories, settings=_MANY_STEPS)


def history(data: bytes) -> None:
    """The input chooses the rules and their arguments, so that `make fuzz` can look for new ones by coverage."""
    _HISTORY.hypothesis.fuzz_one_input(data)
