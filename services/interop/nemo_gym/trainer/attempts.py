"""Attempts: runs one row of a trainer until it is measured, and decides what becomes of a rollout that fails."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Collection

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.client import ServerClient
from rollyard.services.http.transport import HttpResponse
from rollyard.services.interop.nemo_gym.trainer.result import failed_result, to_result
from rollyard.services.interop.nemo_gym.trainer.settings import CollectionSettings
from rollyard.services.rollouts.output_row import parse_row

log = logging.getLogger("rollyard")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
_CONFIGURATION = frozenset(
    {
        *(FailureKind.UNAUTHORIZED, FailureKind.FORBIDDEN, FailureKind.UNKNOWN_SERVER, FailureKind.WRONG_RUN),
        *(FailureKind.UPSTREAM_REFUSED, FailureKind.BAD_REQUEST),
    }
)
"""Failures that every rollout would have until someone corrects the run. They are raised, whatever the settings."""


class RolloutFailed(RuntimeError):
    """A rollout failed permanently. NeMo RL reads `status`, and the exception can be sent between processes."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class Attempts:
    """Runs rows through their agents. `model_servers` and `agents` are names of servers of the run."""

    def __init__(
        self,
        client: ServerClient,
        settings: CollectionSettings,
        *,
        agents: Collection[str] = (),
        model_servers: Collection[str] = (),
    ) -> None:
        self._client = client
        self._settings = settings
        self._agents = agents
        self._model_servers = model_servers
        self._logged: set[str] = set()

    async def run(self, row: Json) -> Json:
        """Return the result of a row. Raises RolloutFailed if it fails permanently and such rollouts are not masked."""
        agent = row["agent_ref"]["name"]
        body = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
        for attempt in range(self._settings.max_attempts):
            try:
                response = await self._client.post(agent, "/run", body, self._settings.rollout_timeout_s)
                # Without its headers it is parsed in one piece: trainers read and change the response.
                answer: Json = dict(parse_row(HttpResponse(response.status, {}, response.body), agent))
                return to_result(row, answer, self._settings.endings, agent)
            except Failure as failure:
                self._log(failure, attempt)
                if self._is_final(failure) or attempt + 1 == self._settings.max_attempts:
                    return self._failed(row, failure)
            pause = min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        raise AssertionError("the last attempt returns or raises")

    def _is_final(self, failure: Failure) -> bool:
        server = failure.problem.server
        return failure.terminal or self._settings.endings.is_final(
            failure.kind, server, self._agents, self._model_servers
        )

    def _failed(self, row: Json, failure: Failure) -> Json:
        if failure.kind not in _CONFIGURATION and self._masks():
            return failed_result(row, failure)
        problem = failure.problem
        message = (
            f"a rollout of {row['agent_ref']['name']} failed: {failure} (at {problem.server or 'an unknown server'})"
        )
        raise RolloutFailed(message, problem.status) from None  # the cause may not be picklable

    def _masks(self) -> bool:
        choice = self._settings.failed_rollouts
        return choice == "mask" or (choice == "auto" and "nemo_rl" in sys.modules)

    def _log(self, failure: Failure, attempt: int) -> None:
        """Log the first failure of each kind; later ones only in detail."""
        level = logging.DEBUG if failure.kind in self._logged else logging.WARNING
        self._logged.add(failure.kind)
        log.log(level, "attempt %d of a rollout failed at %s: %s", attempt + 1, failure.problem.server or "?", failure)
