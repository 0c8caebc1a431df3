"""Log-probabilities of given token sequences, from every engine: a trainer compares them with its own.

They are those at temperature 1, without any constraint, of prompts, which vLLM computes without its prefix cache. An
engine with --enable-lora samples tokens instead, because vLLM 0.32 dies on a CPU if it computes the log-probabilities
of a prompt together with another request (add_lora_logits in punica_cpu.py; not tried on a GPU).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.checkpoint import bad_request
from rollyard.responses_api_models.chat_engine.engine_group import QUERY_S, EngineGroup, EngineReply
from rollyard.responses_api_models.chat_engine.policy_versions import Gate, PolicyVersions

MAX_TOKENS = 65_536
"""Limit of a request, because vLLM computes the logits of all tokens of a prompt together."""
SAMPLED_TOKENS = 32
"""How many tokens an engine with LoRA samples for each sequence."""


class EngineLogProbs:
    def __init__(self, engines: EngineGroup, versions: PolicyVersions, gate: Gate, model: str) -> None:
        self._engines = engines
        self._versions = versions
        self._gate = gate
        self._model = model

    async def read(self, request: Json) -> Json:
        """Return the version and, for each engine, sequences with the log-probabilities of their last tokens.

        An engine that does not respond while another does leaves the pool, as in an update. Raises Failure if no engine
        responds, if one refuses the tokens, or if the weights changed in the meantime.
        """
        sequences = _sequences(request)
        urls, mark = self._engines.urls, self._versions.mark
        found: dict[str, list[Json]] = {}

        async def ask(url: str) -> None:
            one = self._sampled if await self._has_lora(url) else self._of_prompt
            found[url] = await asyncio.gather(*(one(url, ids) for ids in sequences))

        if failed := await self._engines.all(urls, ask):
            raise next(iter(failed.values()))
        if not found:
            raise Failure(FailureKind.UNREACHABLE, "no engine is up")
        self._gate.check()
        if self._versions.mark != mark:
            raise Failure(FailureKind.UPSTREAM_ERROR, "the weights changed during the request; repeat it", status=503)
        engines = [{"url": url, "sequences": found[url]} for url in urls if url in found]
        return {"version": self._versions.now, "engines": engines}

    async def _has_lora(self, url: str) -> bool:
        reply = await self._engines.request(url, "GET", "/server_info?config_format=json", timeout_s=QUERY_S)
        try:
            return self._versions.has_adapter or bool(reply.ok and reply.value["vllm_config"].get("lora_config"))
        except (AttributeError, KeyError, TypeError):
            return False

    async def _of_prompt(self, url: str, ids: list[int]) -> Json:
        """Return a sequence with the log-probability of every token but the first."""
        reply = await self._ask(url, ids, {"max_tokens": 1, "prompt_logprobs": 0})
        with _readable(url):
            listed = reply.value["choices"][0]["prompt_logprobs"]
            pairs = zip(ids[1:], listed[1:], strict=True)
            return {"ids": ids, "log_probs": [float(entry[str(token)]["logprob"]) for token, entry in pairs]}

    async def _sampled(self, url: str, ids: list[int]) -> Json:
        """Return the first half of a sequence with tokens that the engine then samples, and their log-probabilities."""
        start = ids[: len(ids) // 2]
        own = {"max_tokens": SAMPLED_TOKENS, "logprobs": 0, "return_token_ids": True, "ignore_eos": True}
        reply = await self._ask(url, start, own)
        with _readable(url):
            choice = reply.value["choices"][0]
            generated = [int(token) for token in choice["token_ids"]]
            log_probs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
            if not generated or len(generated) != len(log_probs):
                raise ValueError(f"{len(generated)} tokens")
            return {"ids": [*start, *generated], "log_probs": log_probs}

    async def _ask(self, url: str, prompt: list[int], own: Json) -> EngineReply:
        model = self._versions.engine_model or self._model
        body = {"model": model, "prompt": prompt, "temperature": 1.0, **own}
        reply = await self._engines.request(url, "POST", "/v1/completions", orjson.dumps(body))
        if reply.answered and 400 <= reply.status < 500:
            raise bad_request(str(reply.failure("/v1/completions").problem.detail))
        if not reply.ok:
            raise reply.failure("/v1/completions")
        return reply


@contextlib.contextmanager
def _readable(url: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        detail = f"{url} returned no log-probabilities of tokens ({type(error).__name__}: {error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail) from error


def _sequences(request: Json) -> list[list[int]]:
    if unknown := request.keys() - {"sequences"}:
        raise bad_request(f"found {', '.join(sorted(unknown))}; expected only sequences")
    found = request.get("sequences")
    if not isinstance(found, list) or not found or not all(map(_is_sequence, found)):
        raise bad_request("sequences: expected a list of lists of two or more token ids")
    if (tokens := sum(map(len, found))) > MAX_TOKENS:
        raise bad_request(f"sequences: found {tokens} tokens; the limit is {MAX_TOKENS} per request")
    return found


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(type(token) is int and token >= 0 for token in value)
