"""Rollyard's exceptions, grouped by cause.

    RollyardError
    ├── OperatorError   a wrong command line or config: one line of output, exit status 2
    ├── RunError        the command cannot continue (no head, full disk, too many failures): exit status 1
    └── Failure         an error on a server or host: a Problem that is forwarded unchanged and recorded

A mistake by the *model*, such as an invalid tool call, raises no exception: the model receives it as a tool result.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum

from rollyard.records.types import Problem


class FailureKind(StrEnum):
    """The recorded cause of a failure. It determines the HTTP status and whether the attempt is retried."""

    BAD_TASK = "bad_task"
    """The environment rejects this row (impossible geometry, missing field). Retrying does not help."""
    BAD_REQUEST = "bad_request"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    """The run has no token, and the request comes from another user or a web page, or uses an unknown host name."""
    UNKNOWN_SERVER = "unknown_server"
    WRONG_RUN = "wrong_run"
    """The server at the URL belongs to a different run, or is not a Rollyard server."""
    SESSION_LOST = "session_lost"
    """The environment no longer has the session: it restarted, or the session exceeded its idle timeout."""
    UNREACHABLE = "unreachable"
    CONNECTION_LOST = "connection_lost"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    """The policy's endpoint repeatedly responded with status 429."""
    UPSTREAM_ERROR = "upstream_error"
    """The policy's endpoint responded with status 5xx."""
    UPSTREAM_REFUSED = "upstream_refused"
    """The policy's endpoint rejected the request (bad key, unknown model, invalid parameter)."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model's context. After the first turn, it is a finish reason."""
    MALFORMED_ANSWER = "malformed_answer"
    OVERLOADED = "overloaded"
    """The server has reached a limit, such as the maximum number of sessions."""
    SERVER_ERROR = "server_error"
    CANCELLED = "cancelled"


_STATUS = {
    FailureKind.BAD_TASK: 422,
    FailureKind.BAD_REQUEST: 400,
    FailureKind.UNAUTHORIZED: 401,
    FailureKind.FORBIDDEN: 403,
    FailureKind.UNKNOWN_SERVER: 404,
    FailureKind.WRONG_RUN: 421,
    FailureKind.SESSION_LOST: 410,
    FailureKind.UNREACHABLE: 503,
    FailureKind.CONNECTION_LOST: 502,
    FailureKind.TIMEOUT: 504,
    FailureKind.RATE_LIMITED: 429,
    FailureKind.UPSTREAM_ERROR: 502,
    FailureKind.UPSTREAM_REFUSED: 400,
    FailureKind.CONTEXT_OVERFLOW: 400,
    FailureKind.MALFORMED_ANSWER: 502,
    FailureKind.OVERLOADED: 503,
    FailureKind.SERVER_ERROR: 500,
    FailureKind.CANCELLED: 499,
}

_TERMINAL = frozenset(
    {
        FailureKind.BAD_TASK,
        FailureKind.BAD_REQUEST,
        FailureKind.UNAUTHORIZED,
        FailureKind.FORBIDDEN,
        FailureKind.UNKNOWN_SERVER,
        FailureKind.UPSTREAM_REFUSED,
        FailureKind.CONTEXT_OVERFLOW,
    }
)


MAX_DETAIL = 10_000


class RollyardError(Exception):
    """Base class of all Rollyard exceptions."""


EXIT_OPERATOR = 2


class OperatorError(RollyardError):
    """The command line or a config is wrong. The message states what was found, what was expected and what to do."""


class RunError(RollyardError):
    """The command is valid but cannot continue. The message states why, and where to look."""


class Failure(RollyardError):
    """A failure with its kind and the server where it originated, sent as a Problem and recorded as a FailureRow."""

    def __init__(
        self,
        kind: FailureKind,
        detail: str,
        *,
        server: str = "",
        status: int | None = None,
        upstream_status: int | None = None,
        instance: str = "",
        code: str = "",
    ) -> None:
        # It may quote a model: halves of surrogate pairs cannot be sent, and megabytes must not be recorded.
        detail = detail.encode("utf-8", "replace").decode()
        if len(detail) > MAX_DETAIL:
            detail = f"{detail[:MAX_DETAIL]}... ({len(detail)} characters)"
        super().__init__(f"{kind}: {detail}")
        self.problem = Problem(
            type=f"urn:rollyard:{kind}",
            title=kind.replace("_", " "),
            status=status or _STATUS[kind],
            detail=detail,
            instance=instance,
            server=server,
            upstream_status=upstream_status,
            code=code or str(kind),
        )

    @classmethod
    def of(cls, problem: Problem) -> Failure:
        """Return the failure that `problem` describes, with its origin unchanged."""
        failure = cls(FailureKind.SERVER_ERROR, problem.detail)
        failure.problem = problem
        failure.args = (f"{failure.kind}: {problem.detail}",)
        return failure

    @property
    def kind(self) -> FailureKind:
        """The kind given by the problem's type. A problem from another stack counts as a server error."""
        name = self.problem.type.removeprefix("urn:rollyard:")
        return FailureKind(name) if name in FailureKind.__members__.values() else FailureKind.SERVER_ERROR

    @property
    def terminal(self) -> bool:
        """True if retrying cannot help until the cause is fixed."""
        return self.kind in _TERMINAL


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` if `found` resembles a known name, else ''."""
    matches = difflib.get_close_matches(found, list(known), n=1, cutoff=0.6)
    return f", did you mean {matches[0]!r}?" if matches else ""
