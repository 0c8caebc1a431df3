"""Episodes: plays rollouts on a running stack, for trainers that ask for them themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.rollout_keys import task_key
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import Json
from rollyard.services.backoff import Backoff
from rollyard.services.datasets.mixture import Rollout
from rollyard.services.rollouts.run_answer import encode_line, parse_row
from rollyard.training.groups import EndingRules, GroupMember, member_of_failure, member_of_row
from rollyard.training.training_sequence import SequenceError, SequenceRules
from rollyard.training.training_stack import TrainingStack


@dataclass(frozen=True, slots=True)
class PlaySettings:
    params: Mapping[str, Any] = field(default_factory=dict)
    """Create parameters that override those of the rows."""
    parallel: int = 64
    """Maximum number of episodes in flight."""
    max_attempts: int = 3
    """Attempts per rollout, each in a new session."""
    rollout_timeout_s: float = 3600.0
    """Timeout for one attempt."""
    max_failure_rate: float = 0.5
    """Training stops if more than this share of the rollouts played together fails permanently."""
    sequences: SequenceRules = field(default_factory=SequenceRules)
    """What to do with turns that something but the policy constrained."""
    endings: EndingRules = field(default_factory=EndingRules)
    """How rollouts take part in an update, by how they ended."""
    pauses: Backoff = field(default_factory=lambda: Backoff(first_pause_s=0.5, longest_pause_s=15.0))
    """Pauses before further attempts."""


class Episodes:
    """Plays rollouts and repeats failed ones as a whole, as `ng_collect_rollouts` does."""

    def __init__(self, stack: TrainingStack, settings: PlaySettings, record: Callable[[bytes], None]) -> None:
        """`record` is called with each measured rollout, as a line of JSON."""
        self._stack = stack
        self._settings = settings
        self._record = record
        self._last_failure = ""
        self.ended = 0
        """Number of rollouts that were measured or failed permanently."""
        self.failures: Counter[str] = Counter()
        """Number of permanently failed rollouts by failure kind."""
        self._slots = asyncio.Semaphore(settings.parallel)

    async def play_all(self, rollouts: Sequence[Rollout], params: Mapping[str, Any]) -> list[GroupMember]:
        """Return all rollouts in order. Raises RunError as `play` does, and if too many of them failed."""
        running = [asyncio.create_task(self.play(rollout, params)) for rollout in rollouts]
        try:
            members = await asyncio.gather(*running)
        finally:
            for task in running:
                task.cancel()
        self.check_failure_rate()
        return members

    def check_failure_rate(self) -> None:
        """Raise RunError if too many of the rollouts that have ended failed."""
        failed = self.failures.total()
        if failed > self._settings.max_failure_rate * self.ended:
            [(kind, _)] = self.failures.most_common(1)
            raise RunError(
                f"{failed} of {self.ended} rollouts failed, more than max_failure_rate="
                f"{self._settings.max_failure_rate:g}; most frequent kind: {kind}; the last failure: "
                f"{self._last_failure}"
            )

    async def play(self, rollout: Rollout, params: Mapping[str, Any]) -> GroupMember:
        """Return a rollout as a member of the group of its task, also if it failed in every attempt.

        `params`: create parameters besides those of the settings, which override them. Raises RunError if its tokens
        cannot be trained on, or if its agent cannot be reached.
        """
        played = await self.measure(rollout, params)
        if isinstance(played, GroupMember):
            return played
        settings = self._settings
        try:
            return member_of_row(played, task_key(rollout.row), settings.sequences, settings.endings)
        except SequenceError as error:
            raise RunError(f"a rollout of {rollout.agent} cannot be trained on: {error}") from error

    async def measure(self, rollout: Rollout, params: Mapping[str, Any]) -> Json | GroupMember:
        """Return the row of a rollout, whether or not it has tokens, or a member if it failed in every attempt.

        Raises RunError if the agent cannot be reached.
        """
        settings, key = self._settings, task_key(rollout.row)
        try:
            body = rollout.body({**params, **settings.params}, seeded=False)
            async with self._slots:
                line = await self._measured(rollout, body, key)
        except Failure as failure:
            if failure.kind is FailureKind.UNREACHABLE and failure.problem.server == rollout.agent:
                raise RunError(f"{rollout.agent} can no longer be reached: {failure.problem.detail}") from failure
            self.failures[failure.kind] += 1
            server = failure.problem.server or ""
            treatment = settings.endings.of_failure(failure.kind, server, self._stack.policy_servers)
            return member_of_failure(key, rollout.rollout_index, failure.kind, treatment)
        finally:
            self.ended += 1
        row: Json = orjson.loads(line)
        return row

    async def _measured(self, rollout: Rollout, body: bytes, key: str) -> bytes:
        """Return the row as JSON. Raises the Failure of the last attempt."""
        endings, servers = self._settings.endings, self._stack.policy_servers

        def is_final(failure: Failure) -> bool:
            server = failure.problem.server or ""
            return failure.terminal or endings.is_final(failure.kind, server, {rollout.agent}, servers)

        attempt = 0
        while True:
            attempt += 1
            try:
                client = self._stack.clients.client
                response = await client.post(rollout.agent, "/run", body, self._settings.rollout_timeout_s)
                line = encode_line(self._row(parse_row(response, rollout.agent), rollout, attempt, key), rollout.agent)
            except Failure as failure:
                self._last_failure = str(failure)
                if attempt >= self._settings.max_attempts or is_final(failure):
                    raise
                await asyncio.sleep(self._settings.pauses.pause_s(attempt))
                continue
            self._record(line)
            return line

    @staticmethod
    def _row(row: RolloutRow, rollout: Rollout, attempt: int, key: str) -> RolloutRow:
        return {
            **row,
            "_ng_task_index": rollout.task_index,
            "_ng_rollout_index": rollout.rollout_index,
            "_ng_attempt_index": attempt - 1,
            "_ng_task_key": key,
            "agent_ref": rollout.agent_ref,
        }
