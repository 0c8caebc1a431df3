"""Who is to blame for a failure, and how a failure travels.

    RollyardError
    ├── OperatorError   the person at the keyboard: stops the start with one line, exit status 2
    ├── RunError        the command cannot go on (no head, full disk, too many failures), exit status 1
    └── Failure         our code or a machine: a Problem that crosses hops unchanged and lands on the record

A mistake of the *model* is no exception at all: it goes back to the model as words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from enum import StrEnum

from rollyard.services.types import Problem


class FailureKind(StrEnum):
    """What went wrong, as one word on the record; `Failure` maps it to a status and to "try again or not"."""

    BAD_TASK = "bad_task"
    """The world refuses this row (impossible geometry, missing field): trying again cannot help."""
    BAD_REQUEST = "bad_request"
    """A caller sent what the server cannot read."""
    UNAUTHORIZED = "unauthorized"
    """The run token is missing or wrong."""
    FORBIDDEN = "forbidden"
    """No token is asked here, and the caller is another user of the machine, a web page, or uses an unknown name."""
    UNKNOWN_SERVER = "unknown_server"
    """No server of that name belongs to the run."""
    WRONG_RUN = "wrong_run"
    """The address is answered by a server of another run, or by a stranger."""
    SESSION_LOST = "session_lost"
    """The world does not know the session (any more): it restarted, or the session passed its idle limit."""
    UNREACHABLE = "unreachable"
    """No connection could be made within the budget."""
    CONNECTION_LOST = "connection_lost"
    """The connection broke before the whole answer was there."""
    TIMEOUT = "timeout"
    """A deadline passed."""
    RATE_LIMITED = "rate_limited"
    """The policy's endpoint kept answering 429."""
    UPSTREAM_ERROR = "upstream_error"
    """The policy's endpoint answered 5xx."""
    UPSTREAM_REFUSED = "upstream_refused"
    """The policy's endpoint refused the request (bad key, unknown model, invalid parameter)."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation no longer fits the model's context. After a first answer it ends the episode, by that name."""
    MALFORMED_ANSWER = "malformed_answer"
    """An answer arrived whole but cannot be read."""
    OVERLOADED = "overloaded"
    """The server holds as many sessions as it may."""
    SERVER_ERROR = "server_error"
    """Code of a server raised."""
    CANCELLED = "cancelled"
    """The caller went away or the run was stopped."""


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


class RollyardError(Exception):
    """Root of everything this stack raises on purpose."""


EXIT_OPERATOR = 2
"""With which a process ends for an OperatorError."""


class OperatorError(RollyardError):
    """The command line or a config is wrong; the text says what was found, what was expected, what to do."""


class RunError(RollyardError):
    """The command was right but cannot go on; the text says why and where to look."""


class Failure(RollyardError):
    """A named failure with the server where it began. It becomes a Problem on the wire and a row on the record."""

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
        """The failure that `problem` reports, unchanged: where it began stays where it began."""
        failure = cls(FailureKind.SERVER_ERROR, problem.detail)
        failure.problem = problem
        failure.args = (f"{failure.kind}: {problem.detail}",)
        return failure

    @property
    def kind(self) -> FailureKind:
        """The kind named in the problem's type; a foreign problem counts as a server error."""
        name = self.problem.type.removeprefix("urn:rollyard:")
        return FailureKind(name) if name in FailureKind.__members__.values() else FailureKind.SERVER_ERROR

    @property
    def terminal(self) -> bool:
        """True when another attempt cannot help before somebody mends something."""
        return self.kind in _TERMINAL


def did_you_mean(found: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` when something known looks like what was found, else nothing."""
    matches = difflib.get_close_matches(found, list(known), n=1, cutoff=0.6)
    return f", did you mean {matches[0]!r}?" if matches else ""
