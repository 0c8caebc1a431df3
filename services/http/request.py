"""Requests and responses as a route and a client see them, and failures as problem JSON (RFC 9457)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import BaseModel, ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json, Problem, json_kind

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
MAX_BODY_BYTES = 256 * 1024 * 1024
M = TypeVar("M", bound=BaseModel)


def read_object(body: bytes) -> Json:
    """Parse a request's body as a JSON object. Raises Failure bad_request if it is anything else."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Failure(FailureKind.BAD_REQUEST, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Failure(FailureKind.BAD_REQUEST, f"the body is {json_kind(value)}; expected a JSON object")
    return value


def wrong_fields(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return what pydantic or FastAPI found wrong, with the place of each error."""
    return "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the whole'}: {one['msg']}" for one in errors)


@dataclass(slots=True)
class RawRequest:
    """A request to a hot route: the raw body, and headers that are looked up on demand."""

    path: str
    headers: Mapping[bytes, bytes]
    """By lower-case name; of a repeated header, the last one."""
    body: bytes
    query: bytes = b""
    """The query string, without the question mark."""
    is_act: bool = True
    """Whether the request to an audited route belongs in the log. Its handler says if it has changed nothing."""
    act_detail: Json | None = None
    """What the log says of it; default: the plain values of its query and body."""

    def header(self, name: bytes) -> str | None:
        """Return the value of the header with this lower-case name, or None if it is absent."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def json(self) -> Json:
        return read_object(self.body)

    def record(self, model: type[M]) -> M:
        """Parse the body as this record. Raises Failure bad_request if it is anything else."""
        try:
            return model.model_validate_json(self.body)
        except ValidationError as error:
            raise Failure(FailureKind.BAD_REQUEST, f"the body is not valid: {wrong_fields(error.errors())}") from error


class SentHeaders(dict[str, str]):
    """The headers of many requests, which are encoded once. They must not change after the first request."""

    @cached_property
    def block(self) -> bytes:
        """The lines as they are sent, with the empty one after them. Raises InvalidHeader."""
        text = "".join([f"{name}: {value}\r\n" for name, value in self.items()])
        if text.count("\n") != len(self) or text.count("\r") != len(self):
            raise InvalidHeader("a header contains a line break")
        try:
            return text.encode("latin-1") + b"\r\n"
        except UnicodeEncodeError:
            name = next(name for name, value in self.items() if max(name + value) > "\xff")
            raise InvalidHeader(f"the header {name!r} contains characters that HTTP does not allow") from None

    @cached_property
    def received(self) -> dict[bytes, bytes]:
        """As a server in the same process receives them."""
        return {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in self.items()}


class InvalidHeader(ValueError):
    """Raised when a request header contains characters that HTTP does not allow."""


class HttpResponse(NamedTuple):
    """A complete response. Lookups in `headers` ignore case; those of apps in this process are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cookies: tuple[str, ...] = ()
    """Every `Set-Cookie` value, unchanged."""

    @property
    def succeeded(self) -> bool:
        """True for a 2xx status, except 206: nobody asked for a part of the answer."""
        return 200 <= self.status < 300 and self.status != 206

    @classmethod
    def of(cls, status: int, headers: CIMultiDict[str] | CIMultiDictProxy[str], body: bytes) -> HttpResponse:
        """Create a response that was received over a socket."""
        return cls(status, headers, body, tuple(headers.getall("Set-Cookie", ())))


@dataclass(slots=True)
class RawResponse:
    """The response of a handler that returns anything other than JSON with status 200."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"
    stream: AsyncIterator[bytes] | None = None
    """If set, this stream is sent instead of `body`."""


Handler = Callable[[RawRequest], Awaitable[bytes | RawResponse]]
Headers = list[tuple[bytes, bytes]]
SendResponse = Callable[[int, Headers, RawResponse], Awaitable[None]]
"""Sends the status and headers, and the body or stream of the response."""


async def joined(stream: AsyncIterator[bytes]) -> bytes:
    """Return a whole stream. It is closed if this is cancelled."""
    async with contextlib.aclosing(stream) as pieces:  # type: ignore[type-var]
        return b"".join([piece async for piece in pieces])


def header_lines(headers: Collection[tuple[bytes, bytes]]) -> bytes:
    """Return the header lines of a response. Raises ValueError if one contains a line break."""
    lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
    if lines.count(b"\n") != len(headers) or lines.count(b"\r") != len(headers) or b"\0" in lines:
        raise ValueError(f"a header of the response contains a line break: {headers}")
    return lines


async def read_body(receive: Receive) -> bytes:
    """Return the complete body. Raises Failure if it is too large or the caller disconnects."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Failure(FailureKind.CANCELLED, "the caller disconnected before sending its request")
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    chunks, size = [body], len(body)
    while message.get("more_body"):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Failure(FailureKind.CANCELLED, "the caller disconnected in the middle of its request")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY_BYTES:
            raise Failure(FailureKind.BAD_REQUEST, f"the body is larger than {MAX_BODY_BYTES} bytes", status=413)
    return b"".join(chunks)


async def cancel_on_disconnect(receive: Receive, task: asyncio.Task[Any], disconnected: list[bool]) -> None:
    """Wait until the caller disconnects, then append True to `disconnected` and cancel `task`."""
    while (await receive())["type"] != "http.disconnect":
        pass
    disconnected.append(True)
    task.cancel()


PROBLEM_TYPE = "application/problem+json"


def raise_for_status(response: HttpResponse, server: str) -> HttpResponse:
    """Return the response if it is a complete answer (2xx); otherwise raise the Failure that it reports."""
    if response.status == 200 or response.succeeded:
        return response
    if (problem := _problem_of(response)) is not None:
        raise with_server(Failure.of(problem), server)
    excerpt = response.body[:500].decode("utf-8", "replace")
    kind = FailureKind.RATE_LIMITED if response.status == 429 else FailureKind.SERVER_ERROR
    raise Failure(kind, f"status {response.status}: {excerpt}", server=server, upstream_status=response.status)


def with_server(failure: Failure, server: str) -> Failure:
    """Return the failure with `server` as its origin, unless it already names one."""
    if failure.problem.server:
        return failure
    return Failure.of(failure.problem.model_copy(update={"server": server}))


def reported_failure(response: HttpResponse, server: str) -> Failure | None:
    """Return the Failure that one of Rollyard's servers reports in an error response; None for any other response."""
    problem = _problem_of(response)
    return with_server(Failure.of(problem), server) if problem is not None and problem.server else None


def _problem_of(response: HttpResponse) -> Problem | None:
    """Return the problem in the response. One of another stack may lack required fields; then it is none."""
    if response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        with contextlib.suppress(ValidationError):
            return Problem.model_validate_json(response.body)
    return None


_HEADERS = (("request_id", b"x-request-id"), ("retry_after", b"retry-after"))
"""Members of a problem that are also sent as headers."""


def to_problem(failure: Failure, server: str, path: str) -> Problem:
    """Return the failure's problem. If it does not name a server yet, add `server` and the request path."""
    problem = failure.problem
    if problem.server:
        return problem
    return problem.model_copy(update={"server": server, "instance": problem.instance or path})


def problem_response(problem: Problem) -> RawResponse:
    extra = problem.model_extra or {}
    headers = [(name, _header(extra.get(member))) for member, name in _HEADERS]
    return RawResponse(
        problem.model_dump_json().encode(),
        problem.status,
        headers=((b"x-should-retry", b"false"), *((name, value) for name, value in headers if value)),
        content_type=PROBLEM_TYPE.encode(),
    )


def _header(value: object) -> bytes:
    """Return the encoded value, or b"" if it is not valid in a header. Problems from other stacks can be invalid."""
    return value.encode() if isinstance(value, str) and value.isascii() and value.isprintable() else b""
