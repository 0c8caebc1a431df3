"""Turns: one model call with its tokens on record, each prompt beginning with exactly the ids of the turn before.

The first turn goes to the engine's chat endpoint, a later one is sent as token ids (continuation.py). Where that cannot
be, it goes as messages. Whichever way it went, its prompt is compared with the turn before and a break is recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from responses_api_models.convert_answers import first_choice, malformed, token_fields
from responses_api_models.passage import Passage
from responses_api_models.upstream import Upstream
from responses_api_models.upstream_answers import json_object
from responses_api_models.vllm_model import trail
from responses_api_models.vllm_model.abilities import Abilities
from responses_api_models.vllm_model.continuation import Continuation
from responses_api_models.vllm_model.roads import Rendered, Road
from services.types import TOKEN_FIELDS, Json

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
PLAIN: Json = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent where a request says nothing, so that what is recorded is what was used: an engine's own defaults (the model's
generation_config) cannot be asked for, and tokens for training want the model's own distribution."""
_CONSTRAINTS = ("structured_outputs", "response_format", "guided_regex", "guided_json", "logit_bias", "bad_words")


class Turns:
    """Model calls with tokens, over one upstream."""

    def __init__(
        self, upstream: Upstream, abilities: Abilities, version: Callable[[], str], *, sends_ids: bool = False
    ) -> None:
        self._upstream = upstream
        self._abilities = abilities
        self._version = version
        self._sends_ids = sends_ids
        self._continuation = Continuation()
        self.made = 0
        """Turns that had one before them."""
        self.broken = 0
        """Those of them whose prompt did not begin with it."""

    async def make(self, body: Json, passage: Passage) -> Json:
        """The chat completion for the chat request `body`; its message carries the tokens and their trace."""
        before = trail.last_turn(body["messages"])
        given = body["messages"]
        plain = trail.without_tokens(given)
        body = {**PLAIN, **{key: value for key, value in body.items() if value is not None}, "messages": plain}
        body.update(logprobs=True, top_logprobs=body.get("top_logprobs") or 0)
        version = self._version()
        road = await self._abilities.road(passage) if before is not None else None
        reason = _unfit(road, before, plain, body)
        prompt = None
        if before is not None and road is not None and not reason:
            prompt = await self._continuation.prompt(road, before, body, passage)
            reason = "" if prompt else "no_end_of_turn"
        if prompt is None or road is None:
            sent = {**body, "messages": given} if self._sends_ids else body
            way, completion = "chat", await self._chat(sent, passage)
        else:
            way, completion = road.name, await self._from_ids(road, *prompt, body, passage)
        choice, message = first_choice(completion)
        message.update(token_fields(completion, choice, message))
        _check(message)
        trace = self._trace(message, before, reason)
        trace.update(way=way, context=trail.fingerprint([*plain, message], body))
        trace["sampling"] = self._sampling(body, version, await self._abilities.logprobs_mode(passage))
        message["token_trace"] = trace
        return completion

    async def _chat(self, body: Json, passage: Passage) -> Json:
        sent = orjson.dumps({**body, "return_token_ids": True})
        return await self._upstream.post("/chat/completions", sent, json_object, passage)

    async def _from_ids(self, road: Road, ids: list[int], rendered: Rendered, body: Json, passage: Passage) -> Json:
        made = await road.generate(ids, rendered, body, passage)
        _, message = first_choice(made.completion)
        if len(made.ids) != len(made.log_probs):
            raise malformed(f"has {len(made.ids)} token ids but {len(made.log_probs)} logprobs", made.completion)
        message.update(prompt_token_ids=ids, generation_token_ids=made.ids, generation_log_probs=made.log_probs)
        return made.completion

    def _trace(self, message: Json, before: trail.Turn | None, reason: str) -> Json:
        if before is None:
            return {"segment": 0}
        self.made += 1
        segment = before.trace.get("segment", 0)
        broken = trail.break_between(before.ids, message["prompt_token_ids"], reason)
        if broken is None:
            return {"segment": segment}
        self.broken += 1
        return {"segment": segment + 1, "break": broken}

    def _sampling(self, body: Json, version: str, logprobs_mode: str) -> Json:
        """What was really used to sample the turn."""
        used = {key: body[key] for key in (*SAMPLING, "seed") if body.get(key) is not None}
        constrained = [key for key in _CONSTRAINTS if body.get(key)]
        now = self._version()
        return {
            **used,
            **({"constrained": constrained} if constrained else {}),
            "logprobs_mode": logprobs_mode,
            "policy_version": version,
            **({"policy_version_end": now} if now != version else {}),
        }


def _unfit(road: Road | None, before: trail.Turn | None, plain: list[Json], body: Json) -> str:
    """Why the prompt cannot be built on the ids of the turn before; empty when it can."""
    if before is None or road is None:
        return "retokenized"
    recorded = before.trace.get("context")
    if recorded and recorded != trail.fingerprint(plain[: before.index + 1], body):
        return "history_changed"
    new = plain[before.index + 1 :]
    if not new:
        return "nothing_new"
    if any(not isinstance(message.get("content") or "", str) for message in new):
        return "not_text"
    if body.get("tools") and not road.parses_tools:
        return "no_text_tool_parser"
    return ""


def _check(message: Json) -> None:
    missing = [field for field in TOKEN_FIELDS[:3] if message.get(field) is None]
    if missing:
        hint = "return_token_id_information needs vLLM 0.10.2 or later, which knows return_token_ids"
        raise malformed(f"lacks {', '.join(missing)} ({hint})", {k: v for k, v in message.items() if k != "content"})
