"""Reports failures as rows with status 200, for collectors that stop at the first other status.

NeMo Gym's collector writes a row with `_ng_failure_class` to its failures file instead of its results, and does not
retry it if `_ng_failure_terminal` is true. The row has no reward. Rollyard's own servers and collectors still get the
problem document.
"""

from __future__ import annotations

import logging

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.request import Handler, RawRequest, RawResponse, to_problem
from rollyard.services.http.transport import RUN_HEADER

FAILURE_CLASS = "_ng_failure_class"
FAILURE_TERMINAL = "_ng_failure_terminal"
FAILURE = "_ng_failure"
"""Key of the problem document in the row."""

log = logging.getLogger(__name__)


def with_failure_rows(handler: Handler, server: str) -> Handler:
    """Return the handler with its failures converted to rows. `server` is the name of the server that it belongs to."""

    async def handle(call: RawRequest) -> bytes | RawResponse:
        try:
            return await handler(call)
        except Exception as error:
            if call.header(RUN_HEADER.encode()) is not None:
                raise
            if not isinstance(error, Failure):
                log.exception("%s%s failed", server, call.path)
                detail = f"{type(error).__name__}: {error} (traceback in the log of {server})"
                error = Failure(FailureKind.SERVER_ERROR, detail)
            return failure_row(call, error, server)

    handle.__doc__ = handler.__doc__
    return handle


def failure_row(call: RawRequest, failure: Failure, server: str) -> bytes:
    """Return the row of a failed request: its fields, and what failed. Raises `failure` if it contains no row."""
    try:
        row: Json = call.json()
    except Failure:
        raise failure from None
    row.pop("reward", None)
    problem = to_problem(failure, server, call.path).model_dump(mode="json")
    marks = {FAILURE_CLASS: str(failure.kind), FAILURE_TERMINAL: failure.terminal, FAILURE: problem}
    return orjson.dumps({**row, **marks})
