"""Turns an agent's `/run` response into a row of the output."""

from __future__ import annotations

from typing import cast

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.rollouts.rewards import check_reward, tidy
from rollyard.records.rollouts.rollout_keys import PROMPT
from rollyard.records.types import Json
from rollyard.services.http.transport import HttpResponse
from rollyard.services.rollouts.run_answer import RESPONSE_BYTES_HEADER, decode_row
from rollyard.services.server.settings import is_secret, redacted


def parse_row(response: HttpResponse, agent: str) -> RolloutRow:
    """Parse the response. Raises Failure malformed_answer unless it is an object with a finite reward."""
    try:
        row = decode_row(response.body, response.headers.get(RESPONSE_BYTES_HEADER))
    except orjson.JSONDecodeError as error:
        detail = f"/run did not return JSON ({error}): {response.body[:200]!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent) from error
    if not isinstance(row, dict):
        detail = f"/run returned a JSON {type(row).__name__}; expected an object"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent)
    _check_failure_class(row, agent)
    check_reward(row, "/run", agent)
    row["reward"] = tidy(row["reward"])
    return cast(RolloutRow, row)


def without_keys(body: bytes) -> bytes:
    """Return the body of a `/run` request without credentials: those of the episode's policy, and in parameters such as
    `extra_headers`. The task itself is unchanged.
    """
    row = orjson.loads(body)
    shown = {key: redacted(value, key) if key.startswith("policy_") else value for key, value in row.items()}
    if isinstance(params := row.get("responses_create_params"), dict):
        shown["responses_create_params"] = {
            key: value if key in PROMPT else redacted(value, key) for key, value in params.items()
        }
    return body if shown == row else orjson.dumps(shown)


def _without_keys_in_params(row: RolloutRow) -> RolloutRow:
    params = cast(Json, row.get("responses_create_params"))
    if not isinstance(params, dict) or not (carriers := [key for key in params if _can_carry_keys(key)]):
        return row
    shown = {**params, **{key: redacted(params[key], key) for key in carriers}}
    return cast(RolloutRow, {**row, "responses_create_params": shown})


def _can_carry_keys(name: str) -> bool:
    return name.startswith("extra_") or name.endswith("headers") or (name not in PROMPT and is_secret(name))


def _check_failure_class(row: dict[str, object], agent: str) -> None:
    """Raise the Failure that an agent of NeMo Gym reports in a response with status 200.

    `_ng_failure_terminal` means that another attempt must not be made, now or in a later command.
    """
    failure_class = row.get("_ng_failure_class")
    if failure_class is None and not row.get("_ng_no_persist"):
        return
    kind = FailureKind.BAD_TASK if row.get("_ng_failure_terminal") else FailureKind.SERVER_ERROR
    reported = "no result to keep" if failure_class is None else f"the failure class {failure_class!r:.100}"
    message = row.get("error") or row.get("_ng_failure_reason") or ""
    detail = f"/run reported {reported}" + (f": {message!s:.500}" if message else "")
    raise Failure(kind, detail, server=agent)


def encode_line(row: RolloutRow, agent: str) -> bytes:
    """Encode the row as JSON, without the keys that its parameters may carry, such as `extra_headers`.

    Raises Failure malformed_answer if it is nested too deeply: orjson can parse deeper nesting than it can write.
    """
    try:
        return orjson.dumps(_without_keys_in_params(row))
    except TypeError as error:
        detail = f"/run's response cannot be stored ({error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent) from error
