"""Settings shared by model servers with an engine or an external endpoint. NeMo Gym's names are also accepted.

`endpoint_advice` asks an endpoint what is wrong with its URL, key or model name.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import orjson
from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator
from yarl import URL

from rollyard.records.errors import Failure, OperatorError, did_you_mean
from rollyard.records.types import Json
from rollyard.services.http.request import HttpResponse
from rollyard.services.http.transport import Transport
from rollyard.services.rollouts.collection import with_whole_numbers
from rollyard.services.server.settings import ServerSettings, redacted


class CallSettings(ServerSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        *("default_headers", "request_timeout_s", "total_timeout_s", "max_attempts", "retry_pause_s"),
        *("retry_timeouts", "trainer_endpoints"),
    }

    model: str = Field(validation_alias=AliasChoices("model", "openai_model"))
    """Name under which the endpoint serves the model; replaces the `model` of every request."""
    extra_body: Json | None = None
    """Fields added to every call that does not set them, e.g. {top_k: 20}."""
    default_headers: dict[str, str] = Field(default_factory=dict)
    """Additional headers for every call."""
    request_timeout_s: float = Field(600.0, gt=0)
    """Timeout for one attempt."""
    total_timeout_s: float = Field(1800.0, gt=0)
    """Timeout for a call, including all attempts."""
    max_attempts: int = Field(3, ge=1)
    """Maximum number of attempts per call."""
    retry_timeouts: bool = True
    """Send a call again after a timeout. Set it to false for training: otherwise a response that takes too long gets
    another attempt, and training sees only the faster one."""
    retry_pause_s: float = Field(0.5, ge=0)
    """Pause before the second attempt, with jitter. It doubles with each further attempt."""

    @field_validator("extra_body", "sampling_overrides", check_fields=False)
    @classmethod
    def _with_whole_numbers(cls, body: Json | None, info: ValidationInfo) -> Json | None:
        return None if body is None else with_whole_numbers(body, str(info.field_name))


class EndpointSettings(CallSettings):
    NOT_IDENTITY: ClassVar[frozenset[str]] = CallSettings.NOT_IDENTITY | {"openai_base_url"}

    base_url: str | list[str] = Field(validation_alias=AliasChoices("base_url", "openai_base_url"))
    """URL of the OpenAI-compatible API, including /v1, or a list of URLs. Each episode starts on the URL with the
    fewest calls in flight and stays on it."""
    api_key: SecretStr = Field(SecretStr(""), validation_alias=AliasChoices("api_key", "openai_api_key"))
    """API key, which is sent as a bearer token; self-hosted engines usually require none."""

    @field_validator("base_url")
    @classmethod
    def _readable(cls, value: str | list[str]) -> str | list[str]:
        if not value:
            raise OperatorError("base_url is empty; set one or more URLs, e.g. http://127.0.0.1:8000/v1")
        return [checked_url(url) for url in value] if isinstance(value, list) else checked_url(value)

    @property
    def urls(self) -> list[str]:
        return [self.base_url] if isinstance(self.base_url, str) else list(self.base_url)


def checked_url(url: str) -> str:
    """Return the URL without its trailing slash. Raises OperatorError if it is invalid."""
    try:
        parsed = URL(url)
    except (ValueError, TypeError) as error:
        raise OperatorError(f"base_url: {redacted(url)!r} is not a valid URL") from error
    if parsed.password is not None or parsed.user is not None:
        raise OperatorError(f"base_url: put the credentials for {parsed.host} in api_key, not in the URL")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise OperatorError(f"base_url: found {redacted(url)!r}; expected a URL like http://127.0.0.1:8000/v1")
    if parsed.query_string or parsed.fragment:  # a call's path is appended to the URL
        advice = "expected a URL like http://127.0.0.1:8000/v1. Put a key into api_key or default_headers"
        raise OperatorError(f"base_url: the URL of {parsed.host} has a query; {advice}")
    return url.strip().rstrip("/")


TIMEOUT_S = 5.0
_SHOWN = 5
_ENDS = ("/chat/completions", "/completions", "/responses", "/models", "/v1")


async def endpoint_advice(settings: EndpointSettings, transport: Transport) -> list[str]:
    """Return what is wrong with each endpoint: it does not respond, rejects the key or lacks the model."""
    found = await asyncio.gather(*(_problem(url, settings, transport) for url in settings.urls))
    return [f"{url}: {problem}" for url, problem in zip(settings.urls, found, strict=True) if problem]


async def _problem(url: str, settings: EndpointSettings, transport: Transport) -> str:
    headers = {"accept": "application/json", **settings.default_headers}
    if key := settings.api_key.get_secret_value():
        headers["authorization"] = f"Bearer {key}"

    async def models(url: str) -> HttpResponse:
        return await transport.send("GET", f"{url}/models", b"", headers, TIMEOUT_S)

    async def answers(url: str) -> bool:
        try:
            return (await models(url)).status in (200, 401, 403)
        except Failure:
            return False

    other = f"http://{url[8:]}" if url.startswith("https://") else f"https://{url[7:]}"
    try:
        answer = await models(url)
    except Failure as failure:
        if await answers(other):
            return f"it does not respond, but {other} does: set base_url to that URL"
        return f"{failure.problem.detail}. Rollouts fail until it responds; check base_url"
    status = answer.status
    if status in (401, 403):
        return f"it rejects the key (status {status}): check api_key (policy_api_key)"
    if 300 <= status < 400:
        return f"it redirects to {answer.headers.get('location')}: set base_url to the final URL"
    if status == 400 and await answers(other):
        return f"it uses a different protocol: set base_url to {other}"
    if status >= 500:
        return f"it returns status {status}: rollouts fail until it recovers"
    if status == 404:  # /models is optional, so this alone is not a problem
        similar = [url.removesuffix(end) for end in _ENDS if url.endswith(end)]
        for candidate in [*similar, *([] if url.endswith("/v1") else [f"{url}/v1"])]:
            if await answers(candidate):
                return f"no API responds at this URL, but one responds at {candidate}: set base_url to that URL"
    return _unserved(answer.body, settings.model) if status == 200 else ""


def _unserved(body: bytes, model: str) -> str:
    try:
        listed: Any = orjson.loads(body)
        names = [str(entry["id"]) for entry in listed["data"]]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "it responds, but not as an OpenAI-compatible API: check base_url"
    if not names or model in names:
        return ""
    known = ", ".join(names[:_SHOWN]) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")
    return f"it does not serve the model {model!r}{did_you_mean(model, names)} (it serves {known}): check model"
