"""Verdicts for callers that opened no session: on the row that is in the request, or on a row of the served dataset.

The session lasts for one request: open, seed, verify, close. This is possible if the verdict depends only on the row
and the response (`Environment.stateless`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rewards import with_verdict
from rollyard.records.types import Json
from rollyard.records.verdict_fields import declaration
from rollyard.resources_servers import evaluator_wire
from rollyard.resources_servers.environment import Environment, Verification
from rollyard.resources_servers.returned import bad_task_as_failure, checked_verdict, encoded, seed_items, verdict_json
from rollyard.resources_servers.served_dataset import ServedDataset
from rollyard.resources_servers.sessions import OpenEpisode, Sessions
from rollyard.services.http.request import RawRequest
from rollyard.services.responses.response_validity import check_graded

Opener = Callable[[RawRequest, Json], OpenEpisode]


class RowVerdicts:
    """Gives these verdicts for one server, and ends sessions that are no longer needed after one."""

    def __init__(
        self,
        environment: type[Environment[Any]],
        stateless: bool | None,
        sessions: Sessions,
        opener: Opener,
    ) -> None:
        self.stateless = stateless
        self._environment = environment.__name__
        self._declared = declaration(environment.verdict_fields)
        self._sessions = sessions
        self._open = opener

    @property
    def reverify_mode(self) -> str:
        """NeMo Gym's name for `stateless`."""
        return "unknown" if self.stateless is None else "stateless" if self.stateless else "unsupported"

    async def verify(
        self, call: RawRequest, request: Verification, lost: Failure, dataset: ServedDataset | None
    ) -> bytes:
        """Return the verdict on the row in the request, with all fields of the request.

        `lost`: why the request has no session. `dataset`: adds fields that the request lacks, from its row with the
        same prompt, because NeMo Evaluator's native mode leaves out `expected_answer`. Raises Failure if the row is not
        enough for a verdict.
        """
        if not self.stateless:
            raise self._needs_session(lost)
        check_graded(request.row.get("response"))
        row = {key: value for key, value in request.row.items() if key != "response"}
        known = dataset.row_with_prompt(row.get("responses_create_params")) if dataset is not None else {}
        verdict = await self._verdict(call, {**known, **row}, request)
        found = {**with_verdict(request.row, request.row, verdict), **self._declared}
        return encoded(found, "verify returned a Verdict")

    async def verify_text(self, call: RawRequest, body: Json, dataset: ServedDataset | None) -> bytes:
        if not self.stateless:
            raise self._needs_session(Failure(FailureKind.BAD_REQUEST, "the request contains only the model's text"))
        index = None if dataset is None else evaluator_wire.index_of(body, dataset.name)
        row = evaluator_wire.row_in(body) if dataset is None or index is None else dataset.row(index)
        request = Verification(encoded(evaluator_wire.as_request(row, body["response"]), "the request contains"))
        return encoded(
            evaluator_wire.text_verdict(await self._verdict(call, row, request)), "verify returned a Verdict"
        )

    async def end_verified(self, session: OpenEpisode, request: Verification) -> None:
        """End the session of a client that has received a verdict, or shorten its idle limit.

        It ends at once if the request alone would be enough for another verdict, because nothing can be played in it.
        """
        if self.stateless and session.row.keys() <= request.row.keys():
            await self._sessions.close(session.id)
        elif not session.named:
            session.verified = True

    async def _verdict(self, call: RawRequest, row: Json, request: Verification) -> Json:
        session = self._open(call, row)

        async def set_up() -> list[Json]:
            return seed_items(await bad_task_as_failure(session.episode.seed()))

        try:
            await self._sessions.set_up(session, set_up)
            async with self._sessions.turn(session):
                return verdict_json(await checked_verdict(session.episode.verify(request)))
        finally:
            await self._sessions.close(session.id)

    def _needs_session(self, lost: Failure) -> Failure:
        if self.stateless is None:
            why = (
                f"{self._environment} has tools, turns or a seed, so its verdict may depend on what was played (if it "
                "does not, set `stateless = True` in the class)"
            )
        else:
            why = f"the verdict of {self._environment} depends on what was played"
        detail = f"{lost.problem.detail}; {why}: POST the row to /seed_session, and keep its cookie until /verify"
        return Failure(lost.kind, detail)
