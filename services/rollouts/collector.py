"""Collector: how many episodes at once, how often again, when to stop. What is done already is the store's."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from rollyard.services.datasets.tasks import Rollout
from rollyard.services.errors import Failure, FailureKind, RollyardError, RunError
from rollyard.services.http.client import ServerClient
from rollyard.services.http.transport import HttpResponse
from rollyard.services.rollout_types import RolloutKeys, RolloutRow
from rollyard.services.rollouts.progress import CollectionProgress
from rollyard.services.rollouts.rewards import check_reward
from rollyard.services.rollouts.rollout_keys import task_key
from rollyard.services.rollouts.run_answer import RESPONSE_BYTES_HEADER, decode_row
from rollyard.services.rollouts.store import RolloutStore
from rollyard.services.types import CollectionStatus, FailureRow, State

STATUS_EVERY_S = 1.0
FAILURES_KEPT = 50
"""Of the latest failed attempts, for those who look on."""
ENOUGH_TO_JUDGE = 20
"""Rollouts ended before the failure rate may stop a collection."""


@dataclass(frozen=True)
class Limits:
    """How hard a collection tries."""

    parallel: int = 32
    """Episodes in flight."""
    max_attempts: int = 3
    """Per rollout, each on a fresh session."""
    rollout_timeout_s: float = 3600.0
    """Deadline of one attempt."""
    max_failure_rate: float = 0.5
    """Share of ended rollouts given up above which the collection stops."""
    first_pause_s: float = 0.5
    """Before the second attempt; doubles, with jitter."""
    longest_pause_s: float = 15.0


class Collector:
    """Plays rollouts through their agents and stores what comes back. Holds `limits.parallel` of them and no more."""

    def __init__(
        self,
        rollouts: Iterator[Rollout],
        params: Mapping[str, Any],
        client: ServerClient,
        store: RolloutStore,
        progress: CollectionProgress,
        limits: Limits,
        *,
        seeded: bool = False,
        say: Callable[[str], None] = lambda text: None,
        materialize: Callable[[bytes], None] | None = None,
    ) -> None:
        self._rollouts = rollouts
        self._params = params
        self._client = client
        self._store = store
        self._progress = progress
        self._limits = limits
        self._seeded = seeded
        self._say = say
        self._materialize = materialize
        self._workers: list[asyncio.Task[None]] = []
        self._draining = asyncio.Event()
        self._stopped_because = ""
        self._touched: RunError | None = None
        """What the pulse found wrong with the files."""
        self._told: set[str] = set()
        self.failures: deque[FailureRow] = deque(maxlen=FAILURES_KEPT)
        """The latest failed attempts of this command."""
        self.status: CollectionStatus = progress.status("running")
        """As it was last written down."""

    async def run(self) -> State:
        """Collect until every rollout is measured or given up, or until told to stop.

        Raises RunError: the disk is full, or another program touched the files.
        """
        pulse = asyncio.create_task(self._pulse())
        self._workers = [asyncio.create_task(self._work()) for _ in range(self._limits.parallel)]
        try:
            done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                if not worker.cancelled() and (error := worker.exception()):
                    raise error
            if self._touched is not None:
                raise self._touched
            if self._draining.is_set():
                self._store.check()
            else:
                await asyncio.to_thread(self._store.verify)
        except Exception as error:
            self._stopped_because = str(error)
            raise
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
            pulse.cancel()
            state = self._state()
            self._write_status(state)
        return state

    @property
    def stopped_because(self) -> str:
        """Why the collection stopped by itself; empty when it did not."""
        return self._stopped_because

    def drain(self) -> None:
        """Begin no further episode; those in flight are finished."""
        self._draining.set()

    def stop(self, why: str) -> None:
        """End now, because the collection cannot go on."""
        self._stop(why)
        self.cancel()

    def cancel(self) -> None:
        """End now: episodes in flight are abandoned and will be played again on resume."""
        self._draining.set()
        for worker in self._workers:
            worker.cancel()

    def _write_status(self, state: State) -> None:
        self.status = self._progress.status(state, self._stopped_because)
        self._store.write_status(self.status)

    def _state(self) -> State:
        if self._stopped_because:
            return "stopped"
        if self._progress.measured == self._progress.expected:
            return "complete"
        return "interrupted" if self._draining.is_set() else "incomplete"

    async def _work(self) -> None:
        # All workers pull from one iterator: a row is read when a slot is free.
        while (rollout := self._next()) is not None:
            if self._draining.is_set():
                return
            key = (rollout.task_index, rollout.rollout_index)
            if key in self._store.done or key in self._store.permanently_failed:
                if rollout.rollout_index == 0:
                    await asyncio.sleep(0)  # skipping a million rows must not stop the clock
                continue
            self._progress.begin(key)
            try:
                await self._collect(rollout)
            finally:
                self._progress.end(key)

    def _next(self) -> Rollout | None:
        """The next rollout to play; None at the end, and where the input is not what it was when it was read."""
        try:
            return next(self._rollouts, None)
        except RollyardError as error:
            self._stop(str(error))
            return None

    async def _collect(self, rollout: Rollout) -> None:
        key, asked = (rollout.task_index, rollout.rollout_index), task_key(rollout.row)
        earlier = self._store.attempts.get(key, 0)
        try:
            body = rollout.body(self._params, seeded=self._seeded)
        except Failure as failure:
            self._record(rollout, failure, earlier, 0.0, given_up=True)
            return
        if self._materialize is not None:
            self._materialize(body)
        for attempt in range(self._limits.max_attempts):
            begun = time.monotonic()
            marks: RolloutKeys = {
                "_ng_task_index": rollout.task_index,
                "_ng_rollout_index": rollout.rollout_index,
                "_ng_attempt_index": earlier + attempt,
                "_ng_task_key": asked,
                "agent_ref": rollout.agent_ref,
            }
            try:
                answer = await self._play(rollout.agent, body)
                row = _checked(answer, rollout.agent)
                row.pop("_ng_code", None)  # a row that was a rollout before brings its own
                if self._store.code_mark:
                    marks["_ng_code"] = self._store.code_mark
                row = {**row, **marks}
                line = _line(row, rollout.agent)
            except Failure as failure:
                given_up = failure.terminal or attempt + 1 == self._limits.max_attempts
                self._record(rollout, failure, earlier + attempt, time.monotonic() - begun, given_up=given_up)
                if given_up:
                    return
                await self._pause(attempt)
                if self._draining.is_set():
                    return
                continue
            self._store.append(key, line)
            self._progress.count(row)
            return

    async def _play(self, agent: str, body: bytes) -> HttpResponse:
        """The agent's answer. A rollout that met two versions of a server's code is discarded and played again."""
        while True:
            code_changes = self._store.code_changes
            answer = await self._client.post(agent, "/run", body, self._limits.rollout_timeout_s)
            if code_changes == self._store.code_changes:
                return answer

    def _record(self, rollout: Rollout, failure: Failure, attempt: int, seconds: float, *, given_up: bool) -> None:
        problem = failure.problem
        row = FailureRow(
            task_index=rollout.task_index,
            rollout_index=rollout.rollout_index,
            attempt_index=attempt,
            agent_ref=dict(rollout.agent_ref),
            failure_kind=failure.kind,
            server=problem.server,
            status=problem.status,
            upstream_status=problem.upstream_status,
            detail=problem.detail,
            terminal=failure.terminal,
            time=time.time(),
            duration_s=round(seconds, 3),
        )
        self._store.append_failure(row)
        self.failures.append(row)
        self._progress.count_failure(failure.kind, given_up=given_up)
        if failure.kind not in self._told:
            # The first of a kind at once; the rest are counted and on the record.
            self._told.add(failure.kind)
            where = f"task {rollout.task_index}, repeat {rollout.rollout_index}"
            self._say(f"first failure of kind {failure.kind} ({where}, {problem.server or '?'}): {problem.detail}")
        self._judge(rollout, failure)

    def _judge(self, rollout: Rollout, failure: Failure) -> None:
        """Too many failures end the collection; so does an agent that is not there at all."""
        ended = self._progress.collected + self._progress.given_up
        if failure.kind is FailureKind.UNREACHABLE and failure.problem.server == rollout.agent:
            self._stop(f"{rollout.agent} cannot be reached any more: {failure.problem.detail}")
        elif ended >= ENOUGH_TO_JUDGE and self._progress.given_up > self._limits.max_failure_rate * ended:
            most = self._progress.kinds.most_common(1)[0][0]
            self._stop(
                f"{self._progress.given_up} of {ended} rollouts failed, more than max_failure_rate="
                f"{self._limits.max_failure_rate:g}; most often: {most}"
            )

    def _stop(self, why: str) -> None:
        self._stopped_because = self._stopped_because or why
        self._draining.set()

    async def _pause(self, attempt: int) -> None:
        pause = min(self._limits.first_pause_s * 2**attempt, self._limits.longest_pause_s)
        pause *= random.uniform(0.5, 1.5)
        try:
            await asyncio.wait_for(self._draining.wait(), pause)
        except TimeoutError:
            return

    async def _pulse(self) -> None:
        """Status file, disk sync, and a look at the files, once a second, beside the work."""
        while True:
            self._write_status("running")
            try:
                await asyncio.to_thread(self._store.sync)
            except OSError as error:
                self._stop(f"the disk does not keep what was written: {error}")
            try:
                # Not in a thread: the sizes are compared between two appends.
                self._store.check()
            except RunError as error:
                self._touched = error
                self.cancel()
                return
            await asyncio.sleep(STATUS_EVERY_S)


def _checked(answer: HttpResponse, agent: str) -> RolloutRow:
    """The agent's answer, if it is a rollout: an object with a finite number as reward."""
    try:
        row = decode_row(answer.body, answer.headers.get(RESPONSE_BYTES_HEADER))
    except orjson.JSONDecodeError as error:
        detail = f"/run answered no JSON ({error}): {answer.body[:200]!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent) from error
    if not isinstance(row, dict):
        detail = f"/run answered a JSON {type(row).__name__}; expected an object"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent)
    check_reward(row, "/run", agent)
    return cast(RolloutRow, row)


def _line(row: RolloutRow, agent: str) -> bytes:
    """The row as a line. orjson reads deeper nesting than it writes."""
    try:
        return orjson.dumps(row)
    except TypeError as error:
        raise Failure(
            FailureKind.MALFORMED_ANSWER, f"/run's answer cannot be stored ({error})", server=agent
        ) from error
