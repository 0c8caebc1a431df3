"""What the settings of model servers with an engine or a foreign endpoint share; NeMo Gym's names are taken too."""

from __future__ import annotations

from typing import ClassVar

from pydantic import AliasChoices, Field, SecretStr, field_validator
from yarl import URL

from rollyard.services.errors import OperatorError
from rollyard.services.server.settings import ServerSettings
from rollyard.services.types import Json


class CallSettings(ServerSettings):
    """How a model is called, wherever it is served."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ServerSettings.NOT_IDENTITY | {
        *("default_headers", "request_timeout_s", "total_timeout_s", "max_attempts", "retry_pause_s"),
        *("trainer_endpoints",),
    }

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


class EndpointSettings(CallSettings):
    """A model that somebody else serves."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = CallSettings.NOT_IDENTITY | {"openai_base_url"}

    base_url: str | list[str] = Field(validation_alias=AliasChoices("base_url", "openai_base_url"))
    """Address of the OpenAI-compatible API, with its /v1. Of several, an episode starts on the one with the fewest
    calls in flight and stays there."""
    api_key: SecretStr = Field(SecretStr(""), validation_alias=AliasChoices("api_key", "openai_api_key"))
    """Sent as bearer token; engines of your own usually want none."""

    @field_validator("base_url")
    @classmethod
    def _readable(cls, value: str | list[str]) -> str | list[str]:
        if not value:
            raise OperatorError("base_url is empty; give one address or more, e.g. http://127.0.0.1:8000/v1")
        return [checked_url(url) for url in value] if isinstance(value, list) else checked_url(value)

    @property
    def urls(self) -> list[str]:
        """The addresses as a list."""
        return [self.base_url] if isinstance(self.base_url, str) else list(self.base_url)


def checked_url(url: str) -> str:
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
