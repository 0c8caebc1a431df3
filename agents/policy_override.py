"""Reads `policy_base_url`, `policy_api_key` and `policy_model_name` from the body of `/run` or `/v1/responses`.

With them, the model calls of one episode go to the caller's own endpoint, such as a trainer's recording proxy, instead
of the agent's model server. This requires a run token, and `policy_base_url_allowlist` in the agent's settings. The
fields are not sent to the environment, and the key is not part of the rollout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rollyard.agents.policy_allowlist import AllowedUrl, parsed_url
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.json_values import json_kind
from rollyard.records.types import Json
from rollyard.services.responses.policy_endpoint import PolicyEndpoint

BASE_URL, API_KEY, MODEL_NAME = "policy_base_url", "policy_api_key", "policy_model_name"
_FIELDS = (BASE_URL, API_KEY, MODEL_NAME)


@dataclass(frozen=True, slots=True)
class EpisodePolicy:
    """The policy of one episode, and what the rollout records about it."""

    endpoint: PolicyEndpoint
    recorded: Json


class PolicyOverrides:
    """The rules of one agent for the policies of single episodes."""

    def __init__(self, allowlist: list[str], *, has_token: bool) -> None:
        self._allowed = [AllowedUrl.parse(entry) for entry in allowlist]
        self._has_token = has_token

    def read(self, row: Json) -> tuple[Json, EpisodePolicy | None]:
        """Return the row without the policy fields, and the episode's policy; None if it uses the agent's.

        Raises Failure: bad_request if a field is invalid, forbidden if the endpoint is not allowed.
        """
        if not any(name in row for name in _FIELDS):
            return row, None
        rest = {key: value for key, value in row.items() if key not in _FIELDS}
        given = {name: row[name] for name in _FIELDS if row.get(name) is not None}
        if not given:
            return rest, None
        if BASE_URL not in given:
            raise Failure(FailureKind.BAD_REQUEST, f"{' and '.join(given)} given without {BASE_URL}; expected a URL")
        urls = _urls(given[BASE_URL])
        endpoint = PolicyEndpoint(
            base_urls=urls, api_key=_key(given.get(API_KEY, "")), model=_name(given.get(MODEL_NAME, ""))
        )
        self._check(urls)
        return rest, EpisodePolicy(endpoint, {name: given[name] for name in given if name != API_KEY})

    def _check(self, urls: tuple[str, ...]) -> None:
        if not self._allowed:
            detail = f"this agent accepts no {BASE_URL}; list the allowed URLs in its setting policy_base_url_allowlist"
            raise Failure(FailureKind.FORBIDDEN, detail)
        if not self._has_token:
            detail = f"{BASE_URL} requires a run token: start the run with --token ... or ROLLYARD_TOKEN"
            raise Failure(FailureKind.FORBIDDEN, detail)
        for url in urls:
            try:
                parsed = parsed_url(url)
            except ValueError as error:
                raise Failure(FailureKind.BAD_REQUEST, f"{BASE_URL} is not usable: {error}") from error
            if not any(entry.allows(parsed) for entry in self._allowed):
                detail = (
                    f"{BASE_URL} {parsed.scheme}://{parsed.host}:{parsed.port} is not in this agent's setting "
                    "policy_base_url_allowlist"
                )
                raise Failure(FailureKind.FORBIDDEN, detail)


def _urls(value: Any) -> tuple[str, ...]:
    urls = [value] if isinstance(value, str) else value
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) and url for url in urls):
        found = f"{json_kind(value)}" if not isinstance(value, list | str) else "an empty value or one that is not text"
        raise Failure(FailureKind.BAD_REQUEST, f"{BASE_URL} is {found}; expected a URL or a list of URLs")
    return tuple(url.rstrip("/") for url in urls)


def _key(value: Any) -> str:
    """Return the key without surrounding white space. The error does not contain the value."""
    if not isinstance(value, str) or not value.strip().isascii() or not value.strip().isprintable():
        raise Failure(FailureKind.BAD_REQUEST, f"{API_KEY} is not text that can be sent in an HTTP header")
    return value.strip()


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise Failure(FailureKind.BAD_REQUEST, f"{MODEL_NAME} is {json_kind(value)}; expected text")
    return value
