"""Settings shared by model servers with an engine or an external endpoint. NeMo Gym's names are also accepted."""

from __future__ import annotations

from typing import ClassVar

from pydantic import AliasChoices, Field, SecretStr, ValidationInfo, field_validator
from yarl import URL

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.rollouts.collection import with_whole_numbers
from rollyard.services.server.settings import ServerSettings, redacted


class CallSettings(ServerSettings):
    """Settings for calls to a model."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        *("default_headers", "request_timeout_s", "total_timeout_s", "max_attempts", "retry_pause_s"),
        "retry_timeouts",
        *("trainer_endpoints",),
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
    """Settings of a model at an external endpoint."""

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
        """The URLs as a list."""
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
        raise OperatorError(
            f"base_url: the URL of {parsed.host} has a query; expected a URL like http://127.0.0.1:8000/v1. Put a key "
            "into api_key or default_headers"
        )
    return url.strip().rstrip("/")
