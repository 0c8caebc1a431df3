"""SharedCollection: one worker of a collection that several jobs run together."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io.rollout_paths import RolloutPaths
from rollyard.records.rollouts.manifest import ChangedParameters
from rollyard.records.rollouts.rollout_keys import Expected
from rollyard.records.types import Json, State
from rollyard.services.datasets.tasks import Tasks
from rollyard.services.rollouts.appender import JsonLines
from rollyard.services.rollouts.code_follower import CodeFollower
from rollyard.services.rollouts.collection import CollectionPlan, OpenCollection, Prepared, StackClients, Watch, prepare
from rollyard.services.rollouts.collector import Collector
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.shared.block_finder import WorkerParts, describe
from rollyard.services.rollouts.shared.block_source import BlockSource
from rollyard.services.rollouts.shared.earlier_output import adopt_output, whole_input
from rollyard.services.rollouts.shared.exclusive_files import flock_note
from rollyard.services.rollouts.shared.foreign_shards import ForeignShards
from rollyard.services.rollouts.shared.heartbeats import HeartbeatWriter
from rollyard.services.rollouts.shared.leases import Leases
from rollyard.services.rollouts.shared.merge import keep_torn_tail, merge_into, publish
from rollyard.services.rollouts.shared.merge_turn import MergeTurn
from rollyard.services.rollouts.shared.merged_shards import remove_merged_shards
from rollyard.services.rollouts.shared.opening import OpenRound, open_round
from rollyard.services.rollouts.shared.owners import OwnerWatch, this_owner
from rollyard.services.rollouts.shared.shard_store import ShardStore
from rollyard.services.rollouts.shared.shared_paths import SharedPaths
from rollyard.services.rollouts.shared.shared_records import MergeResult
from rollyard.services.rollouts.shared.worker_progress import measured_elsewhere
from rollyard.services.rollouts.status_reporter import reporting

_POLL_S = 0.2
_ELSEWHERE_EVERY_S = 2.0


@asynccontextmanager
async def open_collection(
    plan: CollectionPlan, tasks: Tasks, stack: StackClients, *, print_line: Callable[[str], None]
) -> AsyncIterator[OpenCollection | SharedCollection]:
    """Open a collection: for this process alone, or for one worker of several if the plan names it.

    Raises as `OpenCollection.opened`.
    """
    if plan.worker is None:
        async with OpenCollection.opened(plan, tasks, stack, print_line=print_line) as alone:
            yield alone
        return
    if plan.overwrite or not plan.resume:
        raise OperatorError(
            "workers always continue the output: drop --overwrite or --resume false, or choose another output"
        )
    tasks, problem = await asyncio.to_thread(whole_input, plan, tasks)
    prepared = await prepare(plan, tasks, stack, print_line=print_line)
    versions = {"rollyard": version("rollyard"), "python": platform.python_version()}
    notes = await asyncio.to_thread(adopt_output, plan, tasks, prepared, versions, print_line)
    try:
        shared = await asyncio.to_thread(SharedCollection, plan, tasks, stack, prepared, versions)
    except ChangedParameters as error:
        raise OperatorError(f"{error} {problem}".rstrip()) from error
    shared.notes[:0] = notes
    try:
        yield shared
    finally:
        await asyncio.to_thread(shared.close)


class SharedCollection:
    """A worker's open files, with the interface of `OpenCollection`."""

    def __init__(
        self, plan: CollectionPlan, tasks: Tasks, stack: StackClients, prepared: Prepared, versions: Json
    ) -> None:
        """Join the collection. Raises OperatorError or RunError if its files cannot be used."""
        assert plan.worker is not None
        self.owner = this_owner(plan.worker, plan.job)
        expected = Expected(tasks.count, plan.repeats)
        self._round: OpenRound = open_round(
            plan.output,
            prepared.identity,
            versions,
            prepared.code,
            expected,
            accept_changed_code=plan.accept_changed_code,
            input_path=prepared.input_path,
            block=plan.block,
        )
        self.paths = RolloutPaths(plan.output)
        self.progress = CollectionProgress(expected.count)
        self.progress.elsewhere = len(self._round.before.done)
        self.stopped_because = ""
        self.result: MergeResult | None = None
        """What was merged; None until the collection has ended."""
        self.notes = [*prepared.notes]
        self._plan, self._tasks, self._stack = plan, tasks, stack
        self._leaving = False
        self._parts = None if self._round.is_over else self._join(self._round, prepared)

    def _join(self, opened: OpenRound, prepared: Prepared) -> WorkerParts:
        plan, paths = self._plan, opened.paths
        self.notes.append(flock_note(paths.folder))
        if before := len(opened.before.done):
            self.notes.append(
                f"resuming: {before} of {self.progress.expected} rollouts are already in {self.paths.output}"
            )
        shard = paths.shard(self.owner.token)
        limit = plan.limits.max_attempts
        store = ShardStore(shard, opened.manifest, prepared.code, opened.before, limit)
        try:
            self.notes += [f"worker {self.owner.worker} writes to {shard.output}", *store.notes]
            heartbeat = HeartbeatWriter(paths.workers, self.owner, plan.lease_s)
            heartbeat.start()
        except BaseException as error:
            store.close()
            if isinstance(error, OSError):
                raise RunError(f"{paths.workers} cannot be written: {error.strerror}") from error
            raise
        return WorkerParts(
            owner=self.owner,
            blocks=opened.blocks,
            leases=Leases(paths),
            watch=OwnerWatch(paths.workers, plan.lease_s),
            heartbeat=heartbeat,
            store=store,
            foreign=ForeignShards(paths, opened.blocks.expected, self.owner.token),
        )

    @property
    def refused(self) -> int:
        """Number of rollouts whose tasks the environment rejected."""
        return self.result.refused if self.result else len(self._round.before.permanently_failed)

    async def run(
        self,
        watch: Watch = Collector.run,
        *,
        print_line: Callable[[str], None] = lambda text: None,
        on_rollout: Callable[[bytes], None] | None = None,
    ) -> State:
        """Collect this worker's share, wait for the others, and merge the shards unless another worker does.

        Raises as `OpenCollection.run`.
        """
        parts = self._parts
        if parts is None:
            return self._ended()
        draining = asyncio.Event()
        source = BlockSource(parts, self._tasks, draining, print_line)
        helpers = [asyncio.create_task(source.keep_finishing()), asyncio.create_task(self._keep_counting(parts))]
        try:
            return await self._collect(parts, source, draining, watch, print_line, on_rollout)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await asyncio.to_thread(source.close)

    def leave(self) -> None:
        """Do not wait for the merge of another worker. A merge of this worker is finished."""
        self._leaving = True

    def close(self) -> None:
        """Give up all leases and close the files."""
        if self._parts is not None:
            self._parts.store.close()
            with suppress(OSError):  # then the leases expire
                self._parts.heartbeat.end()
        for number in range(1, self._round.paths.number + 1):
            remove_merged_shards(SharedPaths(self.paths.output).round(number), self.paths.output)

    async def _collect(
        self,
        parts: WorkerParts,
        source: BlockSource,
        draining: asyncio.Event,
        watch: Watch,
        print_line: Callable[[str], None],
        on_rollout: Callable[[bytes], None] | None,
    ) -> State:
        plan, store, registry = self._plan, parts.store, self._stack.registry
        materialized = JsonLines(store.paths.materialized) if plan.materialize else None
        collector = Collector(
            source,
            plan.params,
            self._stack.client,
            store,
            self.progress,
            plan.limits,
            seeded=plan.seeded,
            print_line=print_line,
            materialize=materialized.append if materialized else None,
            on_rollout=on_rollout,
            on_end=source.ended,
            draining=draining,
        )
        accept = plan.accept_changed_code
        follower = CodeFollower(registry, collector, store, accept=accept, print_line=print_line)
        try:
            async with reporting(registry, store.paths.output, collector, follower):
                try:
                    state = await watch(collector)
                    store.check()
                finally:
                    self.stopped_because = collector.stopped_because
                if source.all_done and not self.stopped_because:
                    state = await self._conclude(parts, collector, print_line)
        finally:
            if materialized:
                materialized.close()
        return state

    async def _conclude(self, parts: WorkerParts, collector: Collector, print_line: Callable[[str], None]) -> State:
        """Return the state of the whole collection once the round is merged. Raises as `_merge`."""
        collector.write_status("running")  # its rollouts are not all of the collection's, so that it seems incomplete
        try:
            state: State = self._ended() if await self._merge(parts, print_line) else "interrupted"
        except RunError:
            collector.write_status("stopped")
            raise
        collector.write_status(state)
        return state

    async def _keep_counting(self, parts: WorkerParts) -> None:
        """Follow how many rollouts the other workers have measured, for the display."""
        before, first = len(self._round.before.done), None
        while True:
            with suppress(OSError):
                others = await asyncio.to_thread(measured_elsewhere, self._round.paths, self.owner.token)
                first = others if first is None else first
                self.progress.elsewhere = before + others
                self.progress.elsewhere_rate = (others - first) / self.progress.elapsed_s
            await asyncio.sleep(_ELSEWHERE_EVERY_S)

    async def _merge(self, parts: WorkerParts, print_line: Callable[[str], None]) -> bool:
        """Return when the round is merged, by this worker or another one; False if this worker leaves before.

        Raises RunError if it cannot be merged.
        """
        paths, waits_for = self._round.paths, None
        turn = MergeTurn(paths, parts.blocks.count, self.owner, parts.watch)
        while not paths.merged.exists():
            try:
                folder = await asyncio.to_thread(turn.take)
            except OSError as error:
                raise RunError(f"{paths.folder} cannot be written: {error.strerror}") from error
            if folder is None:
                if self._leaving:
                    return False
                if turn.waits_for is not None and turn.waits_for != waits_for:
                    waits_for = turn.waits_for
                    print_line(f"all rollouts are measured; waiting for {describe(waits_for)} to merge the shards")
                await asyncio.sleep(_POLL_S)
                continue
            if paths.merged.exists():
                break
            try:
                if note := await asyncio.to_thread(keep_torn_tail, self.paths.output):
                    print_line(note)
                await asyncio.to_thread(self._merge_in, folder, parts)
            except (OSError, RunError) as error:
                if folder.is_dir():
                    raise RunError(f"the shards in {paths.shards} cannot be merged: {error}") from error
                print_line("another worker has taken over the merge")
        return True

    def _merge_in(self, folder: Path, parts: WorkerParts) -> None:
        output, paths = self.paths.output, self._round.paths
        merge_into(folder, output, paths, self._round.manifest, parts.blocks, finished=True, merged_by=self.owner)
        publish(folder, output, paths)
        with suppress(OSError):
            folder.rmdir()

    def _ended(self) -> State:
        """Read the result of the merge, or of the output if nothing was left to collect."""
        if self._round.is_over:
            before = self._round.before
            self.result = MergeResult(
                expected=self.progress.expected,
                measured=len(before.done),
                refused=len(before.permanently_failed),
                superseded=0,
                shards=0,
                merged_by=None,
            )
        else:
            try:
                self.result = MergeResult.model_validate_json(self._round.paths.merged.read_bytes())
            except (OSError, ValueError) as error:
                raise RunError(f"{self._round.paths.merged} cannot be read: {error}") from error
        self.progress.elsewhere = self.result.measured - self.progress.measured
        return "complete" if self.result.measured == self.result.expected else "incomplete"
