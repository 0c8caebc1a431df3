"""Turns: one model call with its tokens on record, each prompt beginning with exactly the ids of the turn before.

The first turn goes to the engine's chat endpoint, a later one is sent as token ids (continuation.py). Where that cannot
be, it goes as messages. Whichever way it went, its prompt is compared with the turn before and a break is recorded.
"""

from __future__ import annotations

from typing import Any

import orjson

from responses_api_models.chat_engine import trail
from responses_api_models.chat_engine.abilities import Abilities
from responses_api_models.chat_engine.continuation import Continuation
from responses_api_models.chat_engine.roads import Road
from responses_api_models.chat_engine.trainer.versions import Versions
from responses_api_models.convert_answers import token_fields
from responses_api_models.passage import Passage
from responses_api_models.upstream import Upstream
from responses_api_models.upstream_answers import json_object
from services.errors import Failure, FailureKind
from services.turns.validity import check_completion, malformed
from services.types import TOKEN_FIELDS, Json

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
PLAIN: Json = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent where a request says nothing, so that what is recorded is what was used: an engine's own defaults (the model's
generation_config) cannot be asked for, and tokens for training want the model's own distribution."""
_CONSTRAINTS = ("structured_outputs", "response_format", "guided_regex", "guided_json", "logit_bias", "bad_words")


class Turns:
    """Model calls with tokens, over one upstream."""

    def __init__(
        self, upstream: Upstream, abilities: Abilities, versions: Versions, *, sends_ids: bool = False
    ) -> None:
        self._upstream = upstream
        self._abilities = abilities
        self._versions = versions
        self._sends_ids = sends_ids
        self._continuation = Continuation()

    async def make(self, asked: Json, passage: Passage) -> Json:
        """The chat completion for the chat request `asked`; its message carries the tokens and their trace."""
        given = _messages(asked)
        before, plain = trail.last_turn(given), trail.without_tokens(given)
        body = {**PLAIN, **{key: value for key, value in asked.items() if value is not None}, "messages": plain}
        body.update(logprobs=True, top_logprobs=asked.get("top_logprobs") or 0)
        texts = bool(asked.get("logprobs"))
        mark, said = self._versions.mark, trail.Fingerprint(body)
        recorded = said.add(plain[: before.index + 1]) if before else ""
        way, completion = await self._continued(before, body, recorded, passage, texts) if before else ("", None)
        reason = ""
        if completion is None:
            reason, way = way, "chat"
            sent = {**body, "messages": trail.without_traces(given)} if self._sends_ids else body
            completion = await self._chat(sent, passage)
        choice, message = check_completion(completion)
        message.update(token_fields(completion, choice, message))
        _check(message)
        # They stand on the message; where an engine puts them they stand for callers who asked as one asks an engine.
        wanted = (message["prompt_token_ids"], message["generation_token_ids"])
        completion["prompt_token_ids"], choice["token_ids"] = wanted if asked.get("return_token_ids") else (None, None)
        if not texts:
            choice["logprobs"] = None
        trace = _trace(message, before, reason)
        trace.update(way=way, context=said.add([*plain[before.index + 1 if before else 0 :], message]))
        version = self._versions.sampled(mark, choice.pop("weight_versions", None), passage.url)
        trace["sampling"] = {**_sampling(body, await self._abilities.logprobs_mode(passage)), **version}
        message["token_trace"] = trace
        return completion

    async def _chat(self, body: Json, passage: Passage) -> Json:
        sent = orjson.dumps({**body, "return_token_ids": True})
        return await self._upstream.post("/chat/completions", sent, _read_completion, passage)

    async def _continued(
        self, before: trail.Turn, body: Json, recorded: str, passage: Passage, texts: bool
    ) -> tuple[str, Json | None]:
        """The way that the turn took as token ids, and its completion; or why it cannot go so, and None.

        `recorded` is what the conversation up to the turn before looks like now.
        """
        road = await self._abilities.road(passage)
        if reason := _unfit(road, before, recorded, body):
            return reason, None
        assert road is not None
        prompt = await self._continuation.prompt(road, before, body, passage)
        if prompt is None:
            return "no_end_of_turn", None
        ids, rendered = prompt
        made = await road.generate(ids, rendered, body, passage, texts=texts)
        if len(made.ids) != len(made.log_probs):
            raise malformed(f"has {len(made.ids)} token ids but {len(made.log_probs)} logprobs", made.completion)
        choice, message = check_completion(made.completion)
        choice["weight_versions"] = made.weight_versions
        message.update(prompt_token_ids=ids, generation_token_ids=made.ids, generation_log_probs=made.log_probs)
        return road.name, made.completion


def _read_completion(body: bytes) -> Json:
    completion = json_object(body)
    check_completion(completion)
    return completion


def _trace(message: Json, before: trail.Turn | None, reason: str) -> Json:
    """How the turn hangs together with the one before. `reason`: why it went as messages."""
    if before is None:
        return {"segment": 0}
    found = before.trace.get("segment")
    segment = found if isinstance(found, int) else 0
    # A prompt sent as ids was put together from those of the turn before.
    broken = trail.break_between(before.ids, message["prompt_token_ids"], reason) if reason else None
    return {"segment": segment + 1, "break": broken} if broken else {"segment": segment}


def _sampling(body: Json, logprobs_mode: str) -> Json:
    """How the turn was really sampled."""
    used = {key: body[key] for key in (*SAMPLING, "seed") if body.get(key) is not None}
    constrained = [key for key in _CONSTRAINTS if body.get(key)]
    return {**used, **({"constrained": constrained} if constrained else {}), "logprobs_mode": logprobs_mode}


def _unfit(road: Road | None, before: trail.Turn, recorded: str, body: Json) -> str:
    """Why the prompt cannot be built on the ids of the turn before; empty when it can."""
    if before.trace.get("context", recorded) != recorded:
        return "history_changed"
    if road is None:
        return "retokenized"
    messages = body["messages"]
    if before.index + 1 == len(messages):
        return "nothing_new"
    # An image is more than its ids, wherever it stands: the engine wants the picture with them.
    if any(isinstance(message.get("content"), list) and not _only_text(message["content"]) for message in messages):
        return "not_text"
    return road.unfit(body)


def _only_text(parts: list[Any]) -> bool:
    return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)


def _messages(asked: Json) -> list[Json]:
    """The conversation of a chat request. Raises Failure bad_request."""
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Failure(FailureKind.BAD_REQUEST, f"messages: found {str(messages)[:100]}; a list of messages is expected")
    if asked.get("n") not in (None, 1):
        raise Failure(FailureKind.BAD_REQUEST, f"n: found {asked['n']}; with tokens on record a call is one turn")
    return messages


def _check(message: Json) -> None:
    missing = [field for field in TOKEN_FIELDS[:3] if message.get(field) is None]
    if missing:
        hint = "return_token_id_information needs vLLM 0.10.2 or later, which knows return_token_ids"
        raise malformed(f"lacks {', '.join(missing)} ({hint})", {k: v for k, v in message.items() if k != "content"})
