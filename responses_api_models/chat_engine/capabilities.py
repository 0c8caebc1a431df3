"""Abilities: what the engine can do beyond chat, asked of it once: how it takes tokens in, what its logprobs mean."""

from __future__ import annotations

import asyncio
import logging
import math
import time

import orjson

from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.responses_api_models.chat_engine.token_backends.base import TokenBackend
from rollyard.responses_api_models.chat_engine.token_backends.completions import CompletionsBackend
from rollyard.responses_api_models.chat_engine.token_backends.generate import GenerateBackend
from rollyard.responses_api_models.upstream.answers import json_object
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.responses.policy_logprobs import LOWEST
from rollyard.services.responses.response_validity import malformed
from rollyard.services.types import Json

log = logging.getLogger(__name__)


ASK_AGAIN_S = 60.0
"""After a refusal: what an engine cannot do at first contact it may do later."""
UNKNOWN = "unknown"
_CANNOT = (FailureKind.UPSTREAM_REFUSED, FailureKind.MALFORMED_ANSWER)
"""Answers of an engine, or of what stands before it, that does not have an endpoint."""


class Capabilities:
    """The engine's, found out at the first call that needs them and kept; asked for again where it refused."""

    def __init__(self, upstream: Upstream, settings: ChatEngineSettings) -> None:
        self._upstream = upstream
        self._settings = settings
        self._asking = asyncio.Lock()
        self._backend: TokenBackend | None = None
        self._backend_until = 0.0
        self._modes: dict[str | None, tuple[str, float]] = {}
        """Address of an engine -> its logprobs mode, and until when it counts."""

    async def backend(self, request_context: RequestContext) -> TokenBackend | None:
        """The way in which token ids go in; None when prompts are messages."""
        if time.monotonic() >= self._backend_until:
            async with self._asking:
                if time.monotonic() >= self._backend_until:
                    self._backend, lasts = await self._find_backend(request_context)
                    self._backend_until = math.inf if lasts else time.monotonic() + ASK_AGAIN_S
        return self._backend

    async def logprobs_mode(self, request_context: RequestContext) -> str:
        """The --logprobs-mode of the engine that answered last, as it shows.

        `raw_logprobs` are those before temperature and top_p, `processed_logprobs` those of the distribution that was
        sampled from. Raises Failure upstream_refused for an engine that gives logits, or another mode than the setting.
        """
        if self._persistent_mode(request_context.url) is None:
            async with self._asking:
                if self._persistent_mode(request_context.url) is None:
                    found = await self._find_mode(request_context)
                    lasts = math.inf if found not in (None, UNKNOWN) else time.monotonic() + ASK_AGAIN_S * bool(found)
                    self._modes[request_context.url] = (found or UNKNOWN, lasts)
        found, wanted = self._modes[request_context.url][0], self._settings.logprobs_mode
        if found == UNKNOWN:
            return wanted or UNKNOWN
        if "logits" in found or (wanted and found != wanted):
            expected = wanted or "raw_logprobs or processed_logprobs"
            told = f"{request_context.url} runs with --logprobs-mode {found}; {expected} is expected"
            raise Failure(FailureKind.UPSTREAM_REFUSED, f"{told}: start it so, or change the setting logprobs_mode")
        return found

    def _persistent_mode(self, url: str | None) -> str | None:
        mode, until = self._modes.get(url, (None, 0.0))
        return mode if time.monotonic() < until else None

    async def _find_backend(self, request_context: RequestContext) -> tuple[TokenBackend | None, bool]:
        """The way, and whether it lasts: an engine that refuses may still be loading, or behind a proxy that is."""
        settings = self._settings
        if settings.token_in == "off" or settings.send_token_ids:
            return None, True
        by_generate = GenerateBackend(self._upstream)
        by_completions = CompletionsBackend(self._upstream, settings.text_tool_parser is not None)
        if settings.token_in == "completions":
            return by_completions, True
        try:
            await by_generate.check(settings.model, request_context)
        except Failure as failure:
            if failure.kind not in _CANNOT:
                raise
            if settings.token_in == "generate":
                told = f"token_in is generate, but the engine has no token-in endpoints ({failure.problem.detail})"
                raise Failure(FailureKind.UPSTREAM_REFUSED, f"{told}; start vLLM with --enable-scale-out") from failure
            if self._backend is None:
                log.warning("%s: no token-in endpoints (vLLM: --enable-scale-out); %s", self._upstream, _INSTEAD)
        else:
            return by_generate, True
        try:
            await by_completions.check(settings.model, request_context)
        except Failure as failure:
            if failure.kind not in _CANNOT:
                raise
            return None, False
        return by_completions, False

    async def _find_mode(self, request_context: RequestContext) -> str | None:
        """Two temperatures, one prompt: the likeliest token's logprob stays the same only where they are not in it.

        None when the engine gave no answer for now.
        """

        async def likeliest(temperature: float) -> float:
            body: Json = {"model": self._settings.model, "prompt": "x", "max_tokens": 1, "logprobs": 1}
            body.update(temperature=temperature, top_p=1.0, top_k=-1)
            return await self._upstream.post("/completions", orjson.dumps(body), _top_logprob, request_context)

        try:
            one, two = await likeliest(1.0), await likeliest(2.0)
        except Failure as failure:
            log.warning("%s: what its logprobs mean cannot be found out: %s", self._upstream, failure)
            return UNKNOWN if failure.kind in _CANNOT else None
        kind = "logprobs" if max(one, two) <= 0.0 else "logits"
        return f"raw_{kind}" if abs(one - two) < 1e-6 else f"processed_{kind}"


_INSTEAD = (
    "token ids go through /v1/completions instead, with tools only where text_tool_parser is set; without /tokenize, "
    "every turn goes as messages"
)


def _top_logprob(body: bytes) -> float:
    try:
        value = float(max(json_object(body)["choices"][0]["logprobs"]["top_logprobs"][0].values()))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise malformed(f"has no top logprobs ({type(error).__name__})", body[:200]) from error
    if not LOWEST < value < math.inf:
        raise malformed(f"gives {value} for the likeliest token, which is not finite", body[:200])
    return value
