"""Detects which token backend the engine supports and what its logprobs mean."""

from __future__ import annotations

import asyncio
import logging
import math
import time

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.token_backends import CompletionsBackend, GenerateBackend, TokenBackend
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream
from rollyard.services.responses.policy_logprobs import LOWEST
from rollyard.services.responses.response_validity import malformed

log = logging.getLogger(__name__)


RETRY_AFTER_S = 60.0
"""Seconds until a missing capability is checked again, because the engine may have gained it by then."""
UNKNOWN = "unknown"
_CANNOT = (FailureKind.UPSTREAM_REFUSED, FailureKind.MALFORMED_ANSWER)
"""Failures that show that the engine, or a proxy in front of it, lacks an endpoint."""


class Capabilities:
    """The capabilities of an engine. They are detected on the first call that needs them and cached; missing
    capabilities are checked again later.
    """

    def __init__(self, upstream: Upstream, settings: ChatEngineSettings) -> None:
        self._upstream = upstream
        self._settings = settings
        self._lock = asyncio.Lock()
        self._backend: TokenBackend | None = None
        self._backend_until = 0.0
        self._modes: dict[str | None, tuple[str, float]] = {}
        """Engine URL -> its logprobs mode, and the time until which the mode is valid."""

    async def backend(self, request_context: RequestContext) -> TokenBackend | None:
        """Return the token backend; None if prompts are sent as messages."""
        if time.monotonic() >= self._backend_until:
            async with self._lock:
                if time.monotonic() >= self._backend_until:
                    self._backend, until = await self._find_backend(request_context)
                    self._backend_until = math.inf if until else time.monotonic() + RETRY_AFTER_S
        return self._backend

    async def logprobs_mode(self, request_context: RequestContext) -> str:
        """Return the detected --logprobs-mode of the engine that responded last.

        `raw_logprobs` are taken before temperature and top_p, `processed_logprobs` from the sampled distribution.
        Raises Failure upstream_refused if the engine returns logits, or if the mode differs from the setting.
        """
        if self._persistent_mode(request_context.url) is None:
            async with self._lock:
                if self._persistent_mode(request_context.url) is None:
                    found = await self._find_mode(request_context)
                    until = math.inf if found not in (None, UNKNOWN) else time.monotonic() + RETRY_AFTER_S * bool(found)
                    self._modes[request_context.url] = (found or UNKNOWN, until)
        found, required = self._modes[request_context.url][0], self._settings.logprobs_mode
        if found == UNKNOWN:
            return required or UNKNOWN
        if "logits" in found or (required and found != required):
            expected = required or "raw_logprobs or processed_logprobs"
            detail = f"{request_context.url} runs with --logprobs-mode {found}; expected {expected}"
            hint = "restart the engine with that mode, or change the setting logprobs_mode"
            raise Failure(FailureKind.UPSTREAM_REFUSED, f"{detail}; {hint}")
        return found

    def _persistent_mode(self, url: str | None) -> str | None:
        mode, until = self._modes.get(url, (None, 0.0))
        return mode if time.monotonic() < until else None

    async def _find_backend(self, request_context: RequestContext) -> tuple[TokenBackend | None, bool]:
        """Return the backend and whether the result is final. It is not if the engine rejected a check, because it may
        still be loading.
        """
        settings = self._settings
        if settings.token_in == "off" or settings.send_token_ids:
            return None, True
        generate = GenerateBackend(self._upstream)
        completions = CompletionsBackend(self._upstream, settings.text_tool_parser is not None)
        if settings.token_in == "completions":
            return completions, True
        try:
            await generate.check(settings.model, request_context)
        except Failure as failure:
            if failure.kind not in _CANNOT:
                raise
            if settings.token_in == "generate":
                detail = f"token_in is generate, but the engine has no token-in endpoints ({failure.problem.detail})"
                raise Failure(
                    FailureKind.UPSTREAM_REFUSED, f"{detail}; start vLLM with --enable-scale-out"
                ) from failure
            if self._backend is None:
                log.warning("%s: no token-in endpoints (vLLM: --enable-scale-out); %s", self._upstream, _FALLBACK)
        else:
            return generate, True
        try:
            await completions.check(settings.model, request_context)
        except Failure as failure:
            if failure.kind not in _CANNOT:
                raise
            return None, False
        return completions, False

    async def _find_mode(self, request_context: RequestContext) -> str | None:
        """Compare the top logprob of one prompt at two temperatures: raw logprobs do not depend on the temperature.

        Returns None if the engine could not be reached.
        """

        async def top_logprob(temperature: float) -> float:
            body: Json = {"model": self._settings.model, "prompt": "x", "max_tokens": 1, "logprobs": 1}
            body.update(temperature=temperature, top_p=1.0, top_k=-1)
            return await self._upstream.post("/completions", orjson.dumps(body), _top_logprob, request_context)

        try:
            one, two = await top_logprob(1.0), await top_logprob(2.0)
        except Failure as failure:
            log.warning("%s: could not detect the logprobs mode: %s", self._upstream, failure)
            return UNKNOWN if failure.kind in _CANNOT else None
        kind = "logprobs" if max(one, two) <= 0.0 else "logits"
        return f"raw_{kind}" if abs(one - two) < 1e-6 else f"processed_{kind}"


_FALLBACK = (
    "falling back to token ids through /v1/completions (with tools only if text_tool_parser is set); without "
    "/tokenize, every turn is sent as messages"
)


def _top_logprob(body: bytes) -> float:
    try:
        value = float(max(json_object(body)["choices"][0]["logprobs"]["top_logprobs"][0].values()))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise malformed(f"has no top logprobs ({type(error).__name__})", body[:200]) from error
    if not LOWEST < value < math.inf:
        raise malformed(f"has a top logprob of {value}; expected a finite number above {LOWEST:g}", body[:200])
    return value
