"""PolicyEndpoint: an endpoint that serves the policy of a single episode, such as a trainer's recording proxy.

An agent receives it in the body of `/run` and checks it against its allow-list. It sends the endpoint to its model
server in a header of each model call, signed with the run's secret, so that no other caller can choose where a model
server connects to. The API key is in the header and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import orjson
from pydantic import Field, ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Record

POLICY_PATH = "/policy/responses"
"""Path of a model server for Responses create requests to an episode's own endpoint."""
POLICY_HEADER = "x-rollyard-policy"
"""Header of these requests with the signed endpoint."""


class PolicyEndpoint(Record):
    """An OpenAI-compatible endpoint, or several replicas of one."""

    base_urls: tuple[str, ...] = Field(min_length=1)
    """URLs of the API, each with /v1 if the endpoint has it, without a trailing slash."""
    api_key: str = Field(default="", repr=False)
    """Bearer token; empty if the endpoint needs none."""
    model: str = ""
    """Model name for the endpoint; empty for the name of the run's model server."""

    def sealed(self, secret: str) -> str:
        payload = orjson.dumps(self.model_dump())
        return f"{base64.urlsafe_b64encode(payload).decode()}.{_signature(payload, secret)}"


def unsealed(header: str | None, secret: str) -> PolicyEndpoint:
    """Return the endpoint in a header value. Raises Failure forbidden unless a server of this run has signed it."""
    encoded, _, signature = (header or "").partition(".")
    try:
        payload = base64.urlsafe_b64decode(encoded)
        if hmac.compare_digest(signature.encode(), _signature(payload, secret).encode()):
            return PolicyEndpoint.model_validate_json(payload)
    except (binascii.Error, ValidationError, ValueError):
        pass
    detail = f"{POLICY_PATH} is for the agents of this run, which sign the endpoint in {POLICY_HEADER}"
    raise Failure(FailureKind.FORBIDDEN, detail)


def _signature(payload: bytes, secret: str) -> str:
    return hmac.new(secret.encode(), b"policy endpoint:" + payload, hashlib.sha256).hexdigest()
