"""Collector: sends rollouts to agents concurrently and stores each result.

It retries failed rollouts as a whole, records what failed with the conversation so far, and decides when to stop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson
from pydantic import ValidationError

from rollyard.records.activity import (
    EPISODE_ID_HEADER,
    PARTIAL_MEMBER,
    RECORD_HEADER,
    ModelLoad,
    PartialConversation,
)
from rollyard.records.errors import Failure, FailureKind, RollyardError, RunError
from rollyard.records.rewards import RENAMED
from rollyard.records.rollout_types import RolloutKeys
from rollyard.records.types import CollectionStatus, FailureRow, Json, State, items, mapping
from rollyard.services.backoff import Backoff
from rollyard.services.datasets.mixture import Rollout
from rollyard.services.http.client import TRACE_HEADER, ServerClient
from rollyard.services.http.request import HttpResponse, raise_for_status
from rollyard.services.rollouts.progress import CollectionProgress, FoundConcurrency
from rollyard.services.rollouts.run_answer import encode_line, parse_row, shortened, without_keys
from rollyard.services.rollouts.store import FailedAttempt, RolloutStore, failure_row, first_failure
from rollyard.services.runtime.process_setup import free_memory_share

if TYPE_CHECKING:
    from rollyard.services.rollouts.concurrency import Concurrency

STATUS_EVERY_S = 1.0
CONTROL_EVERY_S = 1.0
MAX_RECENT_FAILURES = 50
"""Number of recent failed attempts that are kept for status views."""
MIN_ENDED_FOR_RATE = 20
"""Minimum number of finished rollouts before the failure rate can stop the collection."""
DEADLINE_S = 5.0
"""A server that takes longer to answer a question about an episode is not waited for."""
_UNANSWERED = frozenset(
    {
        FailureKind.TIMEOUT,
        FailureKind.CONNECTION_LOST,
        FailureKind.UNREACHABLE,
        FailureKind.WRONG_RUN,
        FailureKind.CANCELLED,
        FailureKind.SERVER_ERROR,
    }
)
"""Failures of an agent that may have played without being able to say so."""


@dataclass(frozen=True)
class CollectionLimits:
    """Concurrency, retries and failure limits of a collection."""

    parallel: int | None = 32
    """Maximum number of episodes in flight; None: found while collecting (concurrency.py), at most `most_parallel`."""
    max_attempts: int = 3
    """Attempts per rollout, each in a new session."""
    rollout_timeout_s: float = 3600.0
    """Timeout for one attempt."""
    max_failure_rate: float = 0.5
    """The collection stops if more than this share of its finished rollouts has failed permanently."""
    first_pause_s: float = 0.5
    """Pause before the second attempt. It doubles with each further attempt and has jitter."""
    longest_pause_s: float = 15.0
    partial_bytes: int = 128 * 1024
    """Maximum size of the conversation that is recorded with a failed attempt, in bytes; 0: none is recorded."""
    most_parallel: int = 10_000


class Collector:
    """Runs rollouts through their agents and stores the results. At most `limits.parallel` are in memory."""

    def __init__(
        self,
        rollouts: Iterator[Rollout],
        params: Mapping[str, Any],
        client: ServerClient,
        store: RolloutStore,
        progress: CollectionProgress,
        limits: CollectionLimits,
        *,
        seeded: bool = False,
        print_line: Callable[[str], None] = lambda text: None,
        materialize: Callable[[bytes], None] | None = None,
        on_rollout: Callable[[bytes], None] | None = None,
        read_load: Callable[[], Awaitable[ModelLoad | None]] | None = None,
    ) -> None:
        """`on_rollout` is called with each stored line; an exception that it raises ends the collection. `read_load`
        returns the load of the model servers, or None if it is unknown at the moment; default: only rollouts are
        measured.
        """
        self._rollouts = rollouts
        self._params = params
        self._client = client
        self._store = store
        self._progress = progress
        self._limits = limits
        self._seeded = seeded
        self._print_line = print_line
        self._materialize = materialize
        self._on_rollout = on_rollout
        self._read_load = read_load
        self._workers: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        """Set once a worker has failed, or none is left."""
        self._is_exhausted = False
        self._error: BaseException | None = None
        self._parallel = limits.parallel or 0
        self._draining = asyncio.Event()
        self.stopped_because = ""
        self._file_error: RunError | None = None
        """Set if the heartbeat finds that the files were changed."""
        self._reported_kinds: set[str] = set()
        self.failures: deque[FailureRow] = deque(maxlen=MAX_RECENT_FAILURES)
        """The latest failed attempts of this command."""
        self.status: CollectionStatus = progress.status("running")
        """The status that was last written to disk."""

    async def run(self) -> State:
        """Collect until every rollout is measured or has permanently failed, or until stopped. Raises RunError."""
        heartbeat = asyncio.create_task(self._heartbeat())
        control: asyncio.Task[None] | None = None
        if self._limits.parallel is None:
            from rollyard.services.rollouts.concurrency import Concurrency  # most collections do not need it

            controller = Concurrency(self._limits.most_parallel)
            self._parallel = controller.limit
            control = asyncio.create_task(self._control(controller))
            control.add_done_callback(self._task_ended)
        self._start_workers()
        try:
            await self._ended.wait()
            if self._error is not None:
                raise self._error
            if self._file_error is not None:
                raise self._file_error
            if self._draining.is_set():
                self._store.check()
            else:
                await asyncio.to_thread(self._store.verify)
        except Exception as error:
            self.stopped_because = str(error)
            raise
        finally:
            if control is not None:
                control.cancel()
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            heartbeat.cancel()
            state = self._state()
            self.write_status(state)
        return state

    def drain(self) -> None:
        self._draining.set()

    def stop(self, why: str) -> None:
        """Stop immediately because the collection cannot continue. `why`: the reason, for the user."""
        self._stop(why)
        self.cancel()

    def cancel(self) -> None:
        """Stop immediately. Episodes in flight are abandoned and will be run again on resume."""
        self._draining.set()
        for worker in self._workers:
            worker.cancel()

    def write_status(self, state: State) -> None:
        self.status = self._progress.status(state, self.stopped_because)
        self._store.write_status(self.status)

    def _state(self) -> State:
        if self.stopped_because:
            return "stopped"
        if self._progress.measured == self._progress.expected:
            return "complete"
        return "interrupted" if self._draining.is_set() else "incomplete"

    def _start_workers(self) -> None:
        while len(self._workers) < self._parallel:
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
        if self._error is not None or not self._workers:
            self._ended.set()

    async def _control(self, controller: Concurrency) -> None:
        """Adapt the number of workers to the load, once a second."""
        loop, progress = asyncio.get_running_loop(), self._progress
        while True:
            progress.concurrency = FoundConcurrency(controller.limit, controller.why)
            await asyncio.sleep(CONTROL_EVERY_S)
            load = progress.load() if self._read_load is None else await self._read_load()
            if load is None or self._draining.is_set():
                continue
            self._parallel = controller.update(loop.time(), load, progress.in_flight, free_memory_share())
            if not self._is_exhausted:
                self._start_workers()

    async def _work(self) -> None:
        # All workers pull from one iterator: a row is read when a slot is free.
        while (rollout := self._next()) is not None:
            if self._draining.is_set():
                return
            key = (rollout.task_index, rollout.rollout_index)
            if key in self._store.done or key in self._store.permanently_failed:
                if rollout.rollout_index == 0:
                    await asyncio.sleep(0)  # skipping a million rows must not block the event loop
                continue
            self._progress.begin(key)
            try:
                await self._collect(rollout)
            finally:
                self._progress.end(key)
            if len(self._workers) > self._parallel:
                self._workers.discard(cast(asyncio.Task[None], asyncio.current_task()))
                return

    def _next(self) -> Rollout | None:
        """Return the next rollout, or None at the end or if the input has changed since it was first read."""
        try:
            rollout = next(self._rollouts, None)
        except RollyardError as error:
            self._stop(str(error))
            rollout = None
        self._is_exhausted = rollout is None
        return rollout

    async def _collect(self, rollout: Rollout) -> None:
        key, key_of_task = (rollout.task_index, rollout.rollout_index), rollout.task_key
        earlier = self._store.attempts.get(key, 0)
        try:
            body = rollout.body(self._params, seeded=self._seeded)
        except Failure as failure:
            self._record(rollout, failure, FailedAttempt(earlier, 0.0), permanent=True)
            return
        if self._materialize is not None:
            self._materialize(without_keys(body))
        max_attempts = self._limits.max_attempts
        for attempt in range(max_attempts):
            started = time.monotonic()
            rollout_keys: RolloutKeys = {
                "_ng_task_index": rollout.task_index,
                "_ng_rollout_index": rollout.rollout_index,
                "_ng_attempt_index": earlier + attempt,
                "_ng_task_key": key_of_task,
                "agent_ref": rollout.agent_ref,
            }
            call = AgentCall(self._client, rollout, body, self._limits.rollout_timeout_s, self._limits.partial_bytes)
            try:
                response = await call.send()
                row = rollout.result(parse_row(response, rollout.agent))
                row.pop("_ng_code", None)  # a rollout used as input already has one
                row.pop("_ng_trace_id", None)
                if self._store.code_mark:
                    rollout_keys["_ng_code"] = self._store.code_mark
                if response.headers.get(TRACE_HEADER, "").split("-")[1:2] == [call.episode]:
                    rollout_keys["_ng_trace_id"] = call.episode
                row = {**row, **rollout_keys}
                line = encode_line(row, rollout.agent)
            except Failure as failure:
                final = failure.terminal or self._store.is_final(failure.kind, failure.problem.server)
                permanent = final or attempt + 1 == max_attempts
                failed = FailedAttempt(earlier + attempt, time.monotonic() - started)
                try:
                    failed.partial = await call.partial(failure)
                finally:  # also if the collection is cancelled meanwhile
                    self._record(rollout, failure, failed, permanent=permanent)
                if permanent:
                    return
                await self._pause(attempt + 1)
                if self._draining.is_set():
                    return
                continue
            self._store.append(key, line)
            self._progress.count(row)
            if RENAMED in row and RENAMED not in self._reported_kinds:
                self._reported_kinds.add(RENAMED)
                self._print_line(_renamed_note(row))
            if self._on_rollout is not None:
                self._on_rollout(line)
            return

    def _record(self, rollout: Rollout, failure: Failure, attempt: FailedAttempt, *, permanent: bool) -> None:
        terminal = failure.terminal or self._store.is_final(failure.kind, failure.problem.server)
        row = failure_row(rollout, failure, attempt, terminal=terminal, abandoned=permanent)
        self._store.append_failure(row, attempt.partial)
        self.failures.append(row)
        self._progress.count_failure(failure.kind, permanent=permanent)
        if failure.kind not in self._reported_kinds:
            # Report the first of each kind; the others are only counted and recorded.
            self._reported_kinds.add(failure.kind)
            self._print_line(first_failure(row))
        self._check_failure_rate(rollout, failure)

    def _check_failure_rate(self, rollout: Rollout, failure: Failure) -> None:
        """Stop the collection if too many rollouts failed or the agent is unreachable."""
        failed, collected = self._progress.newly_failed, self._progress.collected
        if failure.kind is FailureKind.UNREACHABLE and failure.problem.server == rollout.agent:
            self._stop(f"{rollout.agent} can no longer be reached: {failure.problem.detail}")
        elif why := too_many_failures(failed, collected, self._progress.kinds, self._limits.max_failure_rate):
            self._stop(why)

    def _stop(self, why: str) -> None:
        self.stopped_because = self.stopped_because or why
        self._draining.set()

    async def _pause(self, failures: int) -> None:
        pauses = Backoff(self._limits.first_pause_s, self._limits.longest_pause_s, jitter=0.5)
        try:
            await asyncio.wait_for(self._draining.wait(), pauses.pause_s(failures))
        except TimeoutError:
            return

    async def _heartbeat(self) -> None:
        """Write the status, sync the files and check them for changes, once a second."""
        while True:
            self.write_status("running")
            try:
                await asyncio.to_thread(self._store.sync)
            except OSError as error:
                self._stop(f"fsync failed: {error}")
            try:
                # Not in a thread: no append may happen while the sizes are compared.
                self._store.check()
            except RunError as error:
                self._file_error = error
                self.cancel()
                return
            await asyncio.sleep(STATUS_EVERY_S)


def too_many_failures(failed: int, collected: int, kinds: Counter[str], max_rate: float) -> str:
    """Return why a collection stops of which `failed` rollouts were abandoned; empty if it continues."""
    ended = failed + collected
    if ended < MIN_ENDED_FOR_RATE or failed <= max_rate * ended:
        return ""
    most_common = kinds.most_common(1)[0][0]
    return (
        f"{failed} of {ended} rollouts failed, more than max_failure_rate={max_rate:g}; most frequent kind: "
        f"{most_common}"
    )


def _renamed_note(row: Mapping[str, Any]) -> str:
    """Return a note on the keys that a task and its verdict have in common, which is printed once."""
    renamed = row[RENAMED]
    pairs = ", ".join(f"{name} -> {new}" for name, new in renamed.items()) if isinstance(renamed, dict) else ""
    return (
        f"note: rows and verdicts have keys in common; no value is replaced, but stored under another key: {pairs} "
        "(verdict_...: the verdict's value; row_...: the row's, which is no score)"
    )


@dataclass
class AgentCall:
    client: ServerClient
    rollout: Rollout
    body: bytes
    timeout_s: float
    limit: int
    """Maximum size of a partial conversation, in bytes; 0: none is recorded."""
    episode: str = ""
    url: str | None = None

    async def send(self) -> HttpResponse:
        # Also the id of its trace, of which a sampler needs every bit to be random; a UUID's are not.
        self.episode, self.url = secrets.token_hex(16), None
        headers = {EPISODE_ID_HEADER: self.episode, **self.rollout.headers}
        if self.limit:
            headers[RECORD_HEADER] = str(self.limit)
        agent = self.rollout.agent
        _, response = await self.client.reach(agent, "/run", self.body, self.timeout_s, headers, on_send=self._set_url)
        raise_for_status(response, agent)
        if missing := self.rollout.headers.keys() - response.headers.keys():
            detail = f"the agent ignored {', '.join(missing)}: it is of another framework, or of an earlier Rollyard"
            raise Failure(FailureKind.BAD_REQUEST, detail, server=agent)
        return response

    async def partial(self, failure: Failure) -> Json | None:
        """Return the partial conversation of the attempt that failed; None if nobody knows it. Raises no Failure."""
        if not self.limit:
            return None
        extra = failure.problem.model_extra or {}
        if (given := extra.get(PARTIAL_MEMBER)) is not None:
            return _validated(orjson.dumps(given), self.limit)
        if self.url is None or failure.kind not in _UNANSWERED or self.client.book.foreign_instance(self.url):
            return None
        found = await self._get(self.url, f"/episodes/{self.episode}/partial?bytes={self.limit}")
        if found is not None and (partial := _validated(found, self.limit)) is not None:
            return partial
        return await self._from_model_server()

    async def _from_model_server(self) -> Json | None:
        directory = await self.client.book.current()
        for name, family in directory.families.items():
            if family != "responses_api_models":
                continue
            for url in [*directory.servers.get(name, []), *directory.quiet.get(name, [])]:
                if self.client.book.foreign_instance(url) is None:
                    found = await self._get(url, f"/episodes/{self.episode}")
                    if found is not None and (request := _object(found)) is not None:
                        return self._last_request(request, name).model_dump(mode="json")
        return None

    def _last_request(self, request: Json, server: str) -> PartialConversation:
        """Return the conversation as a model server saw it, with the fields of the row."""
        conversation, start = items(request.get("input")), request.get("start")
        first = start if isinstance(start, int) else len(conversation)
        fields = {**self.rollout.row, "responses_create_params": mapping(request.get("params"))}
        row, omitted = shortened(fields, conversation[:first], conversation[first:], self.limit)
        turn = request.get("turn")
        return PartialConversation(
            source="model_server", server=server, turn=turn if isinstance(turn, int) else 0, row=row, omitted=omitted
        )

    async def _get(self, url: str, path: str) -> bytes | None:
        try:
            response = await self.client.get_from(url, path, DEADLINE_S)
        except Failure:
            return None
        return response.body if response.status == 200 else None

    def _set_url(self, url: str) -> None:
        self.url = url


def _validated(body: bytes, limit: int) -> Json | None:
    """Return the record; None if it is none, or larger than the agent was asked for."""
    if len(body) > 2 * limit:
        return None
    try:
        return PartialConversation.model_validate_json(body).model_dump(mode="json")
    except ValidationError:
        return None


def _object(body: bytes) -> Json | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
