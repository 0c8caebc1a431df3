"""PolicyClient: the weight endpoints of the policy's model server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.response_failures import raise_for_status
from rollyard.services.http.transport import Transport

WeightKind = Literal["weights", "adapter"]


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """Token ids, and the log-probabilities of the last of them at temperature 1."""

    ids: Sequence[int]
    log_probs: Sequence[float]


@dataclass(frozen=True, slots=True)
class EngineLogProbs:
    """What the engines compute with one version of the weights."""

    version: str
    engines: Mapping[str, Sequence[ScoredSequence]]
    """URL of an engine -> sequences: those that were sent, or continuations of them that the engine has sampled."""


class PolicyClient:
    """Calls a model server whose `trainer_endpoints` are enabled."""

    def __init__(self, transport: Transport, url: str, token: str | None, name: str = "policy_model") -> None:
        """`url`: address of the model server, without a path. `token`: the run token."""
        self._transport = transport
        self._url = url.rstrip("/")
        self._name = name
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    async def update(self, folder: Path, version: str, timeout_s: float, kind: WeightKind = "weights") -> Json:
        """Have all engines load the weights, or the LoRA adapter, in `folder`.

        Returns the response of `POST /weights/update`. Raises Failure: bad_request if the model server refuses the
        weights, other kinds if they were not loaded or the outcome is unknown.
        """
        body = orjson.dumps({"path": str(folder), "version": version, "kind": kind})
        return await self._call("POST", "/weights/update", body, timeout_s)

    async def status(self, timeout_s: float) -> Json:
        """Return the response of `GET /weights`: the version, its folder, the engines. Raises Failure."""
        return await self._call("GET", "/weights", b"", timeout_s)

    async def control(self, path: str, body: Json | None, timeout_s: float) -> Json:
        """Send one of vLLM's control calls to every engine. Raises Failure if one of them fails."""
        return await self._call("POST", path, b"" if body is None else orjson.dumps(body), timeout_s)

    async def read(self, path: str, timeout_s: float) -> Json:
        """Send one of vLLM's queries to every engine. Raises Failure if one of them fails."""
        return await self._call("GET", path, b"", timeout_s)

    async def log_probs(self, sequences: Sequence[Sequence[int]], timeout_s: float) -> EngineLogProbs:
        """Return the log-probabilities that every engine computes for these token ids, or for continuations of them.

        Raises Failure if an engine does not respond, or if the weights changed in the meantime.
        """
        answer = await self._call("POST", "/weights/log_probs", orjson.dumps({"sequences": sequences}), timeout_s)
        try:
            engines = {
                str(one["url"]): [ScoredSequence(row["ids"], row["log_probs"]) for row in one["sequences"]]
                for one in answer["engines"]
            }
            return EngineLogProbs(str(answer["version"]), engines)
        except (KeyError, TypeError, ValueError) as error:
            raise Failure(FailureKind.MALFORMED_ANSWER, f"/weights/log_probs answered {str(answer)[:200]}") from error

    async def _call(self, method: str, path: str, body: bytes, timeout_s: float) -> Json:
        response = await self._transport.send(method, f"{self._url}{path}", body, self._headers, timeout_s)
        if 400 <= response.status < 500 and "problem" not in response.headers.get("content-type", ""):
            # Of a single engine, whose response the model server passes on unchanged.
            raise Failure(FailureKind.BAD_REQUEST, f"{path} answered {response.status}: {_excerpt(response.body)}")
        raise_for_status(response, self._name)
        try:
            answer = orjson.loads(response.body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            detail = f"{path} answered {_excerpt(response.body)!r}; expected a JSON object"
            raise Failure(FailureKind.MALFORMED_ANSWER, detail)
        return answer


def _excerpt(body: bytes) -> str:
    return body[:300].decode("utf-8", "replace")
