"""Upstream: one foreign OpenAI-compatible endpoint, asked with patience that ends.

A model call keeps no state, so it may be asked again; how often, by class of failure:

    no connection, connection lost      again, after a pause
    429, 503                            again, after the pause that Retry-After asks for
    other 5xx, an unreadable 200        again, after a pause
    no answer in time                   again, when the budget still holds a whole try
    any other status                    never: asking again cannot help

and never more than `max_attempts` times or beyond `budget_s` seconds in all. The first failure is logged when it
happens. The key is sent and never shown.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeVar

from pydantic import AliasChoices, Field, SecretStr, field_validator
from yarl import URL

from responses_api_models.upstream_answers import error_message, retry_after_s
from services.errors import Failure, FailureKind, OperatorError
from services.settings import ServerSettings
from services.transport import Answer, Transport
from services.types import Json

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_CAP_S = 10.0
"""Longest pause of our own between two tries."""
SHUNNED_S = 5.0
"""How long an address that failed comes last: idle because it is dead, it would otherwise be picked first."""
_RETRIED = (
    {FailureKind.UNREACHABLE, FailureKind.CONNECTION_LOST, FailureKind.TIMEOUT, FailureKind.RATE_LIMITED}
    | {FailureKind.UPSTREAM_ERROR, FailureKind.MALFORMED_ANSWER}
)  # fmt: skip


class EndpointSettings(ServerSettings):
    """What the settings of every model server with a foreign endpoint share; NeMo Gym's names are taken too."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        *("openai_base_url", "default_headers", "request_timeout_s", "total_timeout_s"),
        *("max_attempts", "retry_pause_s"),
    }

    base_url: str | list[str] = Field(validation_alias=AliasChoices("base_url", "openai_base_url"))
    """Address of the OpenAI-compatible API, with its /v1; of several, the one with the fewest calls in flight."""
    api_key: SecretStr = Field(SecretStr(""), validation_alias=AliasChoices("api_key", "openai_api_key"))
    """Sent as bearer token; engines of your own usually want none."""
    model: str = Field(validation_alias=AliasChoices("model", "openai_model"))
    """Name under which the endpoint serves the model; replaces whatever a request says."""
    extra_body: Json | None = None
    """Fields added to every call where the request does not say otherwise, e.g. {top_k: 20}."""
    default_headers: dict[str, str] = Field(default_factory=dict)
    """Further headers of every call."""
    request_timeout_s: float = Field(600.0, gt=0)
    """Longest wait for one answer."""
    total_timeout_s: float = Field(1800.0, gt=0)
    """Longest wait for a call with all its tries."""
    max_attempts: int = Field(3, ge=1)
    """Tries of one call."""
    retry_pause_s: float = Field(0.5, ge=0)
    """Pause before the second try; doubles, with jitter."""

    @field_validator("base_url")
    @classmethod
    def _readable(cls, value: str | list[str]) -> str | list[str]:
        return [_checked(url) for url in value] if isinstance(value, list) else _checked(value)


class Upstream:
    """Posts to whichever of its addresses has the fewest calls in flight."""

    def __init__(
        self,
        base_url: str | Sequence[str],
        api_key: SecretStr | None = None,
        *,
        transport: Transport,
        timeout_s: float = 600.0,
        budget_s: float = 1800.0,
        max_attempts: int = 3,
        pause_s: float = 0.5,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        urls = [base_url] if isinstance(base_url, str) else list(base_url)
        self.urls = [_checked(url) for url in urls]
        if not self.urls:
            raise OperatorError("base_url is an empty list; give one address or more, e.g. http://127.0.0.1:8000/v1")
        self._key = api_key.get_secret_value().strip() if api_key else ""
        if not self._key.isprintable() or not self._key.isascii():
            raise OperatorError("api_key holds characters that no HTTP header can carry; check how it was copied")
        self._headers = {"content-type": "application/json", "accept": "application/json", "user-agent": "rollyard"}
        if self._key:
            self._headers["authorization"] = f"Bearer {self._key}"
        self._headers.update({name.lower(): value for name, value in (headers or {}).items()})
        self._transport = transport
        self._timeout_s = timeout_s
        self._budget_s = budget_s
        self._max_attempts = max_attempts
        self._pause_s = pause_s
        self._in_flight = dict.fromkeys(self.urls, 0)
        self._shunned_until = dict.fromkeys(self.urls, 0.0)
        self._quiet_until = 0.0
        self._unlogged = 0

    @classmethod
    def of(cls, settings: EndpointSettings, transport: Transport) -> Upstream:
        """The endpoint that `settings` describe."""
        return cls(
            settings.base_url,
            settings.api_key,
            transport=transport,
            timeout_s=settings.request_timeout_s,
            budget_s=settings.total_timeout_s,
            max_attempts=settings.max_attempts,
            pause_s=settings.retry_pause_s,
            headers=settings.default_headers,
        )

    def __repr__(self) -> str:
        return f"Upstream({self.urls})"

    async def post(self, path: str, body: bytes, read: Callable[[bytes], T]) -> T:
        """What `read` makes of the answer's body; a Failure malformed_answer from it is tried again."""
        give_up = time.monotonic() + self._budget_s
        attempt = 0
        while True:
            attempt += 1
            url = self._pick()
            asked_pause = 0.0
            try:
                timeout_s = max(min(self._timeout_s, give_up - time.monotonic()), 0.01)
                answer = await self._send(url, path, body, timeout_s)
                if 200 <= answer.status < 300:
                    return self._read(answer.body, read)
                asked_pause = retry_after_s(answer.headers.get("retry-after"))
                raise self._failure(answer, url + path)
            except Failure as failure:
                if failure.kind not in _RETRIED:
                    raise
                if failure.kind is not FailureKind.MALFORMED_ANSWER:
                    self._shunned_until[url] = time.monotonic() + SHUNNED_S
                pause = asked_pause + random.uniform(0.5, 1.0) * min(self._pause_s * 2 ** (attempt - 1), PAUSE_CAP_S)
                left = give_up - time.monotonic() - pause
                last = attempt >= self._max_attempts or left <= 0
                last = last or (failure.kind is FailureKind.TIMEOUT and left < self._timeout_s)
                then = "giving up" if last else f"again in {pause:.1f} s"
                self._log(f"{url}{path}: try {attempt} of {self._max_attempts}: {failure} ({then})")
                if last:
                    raise _told(failure, attempt) from failure
            await asyncio.sleep(pause)

    def _pick(self) -> str:
        if len(self.urls) == 1:
            return self.urls[0]
        now = time.monotonic()
        return min(self.urls, key=lambda url: (self._shunned_until[url] > now, self._in_flight[url]))

    async def _send(self, url: str, path: str, body: bytes, timeout_s: float) -> Answer:
        self._in_flight[url] += 1
        try:
            return await self._transport.send("POST", url + path, body, self._headers, timeout_s)
        finally:
            self._in_flight[url] -= 1

    def _read(self, body: bytes, read: Callable[[bytes], T]) -> T:
        try:
            return read(body)
        except Failure:
            # An endpoint that echoes its request would put the key into the excerpt.
            if (shown := self._without_key(body)) != body:
                read(shown)
            raise

    def _failure(self, answer: Answer, endpoint: str) -> Failure:
        status = answer.status
        detail = f"{endpoint} answered {status}: {error_message(self._without_key(answer.body))}"
        if status == 429:
            return Failure(FailureKind.RATE_LIMITED, detail, upstream_status=status)
        if status >= 500:
            return Failure(FailureKind.UPSTREAM_ERROR, detail, upstream_status=status)
        if hint := self._hint(status, answer):
            detail += f" ({hint})"
        shown = status if status >= 400 else None
        return Failure(FailureKind.UPSTREAM_REFUSED, detail, status=shown, upstream_status=status)

    def _hint(self, status: int, answer: Answer) -> str:
        if status == 401 or status == 403:
            return "check policy_api_key" if self._key else "no api_key is set; check policy_api_key"
        if status == 404:
            missing = [url for url in self.urls if not url.endswith("/v1")]
            return "check policy_model_name" + (f", and whether {missing[0]} lacks its /v1" if missing else "")
        if status < 400:
            return f"it redirects to {answer.headers.get('location')}; put the final address into policy_base_url"
        return ""

    def _without_key(self, body: bytes) -> bytes:
        return body.replace(self._key.encode(), b"***") if self._key else body

    def _log(self, text: str) -> None:
        """The first at once, then one a second: a dead endpoint with hundreds of calls must not drown the log."""
        now = time.monotonic()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        log.warning("%s%s", text, f" [and {self._unlogged} more failed tries]" if self._unlogged else "")
        self._quiet_until, self._unlogged = now + 1.0, 0


def _checked(url: str) -> str:
    """The address without its trailing slash. Raises OperatorError."""
    try:
        parsed = URL(url)
    except (ValueError, TypeError) as error:
        raise OperatorError(f"base_url: {url!r} is no address ({error})") from error
    if parsed.password is not None or parsed.user is not None:
        raise OperatorError(f"base_url: put the credentials of {parsed.host} into api_key, not into the address")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise OperatorError(f"base_url: found {url!r}; expected an address like http://127.0.0.1:8000/v1")
    return url.strip().rstrip("/")


def _told(failure: Failure, attempts: int) -> Failure:
    """The failure, saying how often it was tried."""
    if attempts == 1:
        return failure
    problem = failure.problem
    return Failure.of(problem.model_copy(update={"detail": f"{problem.detail} (tried {attempts} times)"}))
