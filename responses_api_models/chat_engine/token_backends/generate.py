"""Sends token ids through vLLM's token-in endpoints. vLLM also parses reasoning and tool calls in the output."""

from __future__ import annotations

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine import sampling
from rollyard.responses_api_models.chat_engine.token_backends.base import QUESTION, Generated, Rendered
from rollyard.responses_api_models.chat_engine.token_backends.engine_responses import finish, logprobs_of, object_reader
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.upstream.response_parsing import json_object
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.responses.response_validity import first_choice, malformed

SEED_IDS = 16
"""Number of trailing prompt ids that the engine's detokenizer needs before the generation."""
_OF_RENDERING = ("token_offsets", "request_id")
"""Keys of a rendered request that a generate request must not contain."""


class GenerateBackend:
    """Sends token ids through vLLM's token-in endpoints."""

    name = "generate"
    names_versions = True

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def check(self, model: str, request_context: RequestContext) -> None:
        """Call all three endpoints, because older vLLM versions have only the first one."""
        body: Json = {"model": model, "max_tokens": 1, "ignore_eos": True}
        rendered = await self.render(body, [QUESTION], request_context)
        request = {key: value for key, value in rendered.request.items() if key not in _OF_RENDERING}
        request["sampling_params"] = {"max_tokens": 1, "ignore_eos": True}
        sent = orjson.dumps(request)
        answer = await self._upstream.post("/../inference/v1/generate", sent, _read_ids, request_context)
        await self.read(answer, rendered.ids, body, request_context)

    def unsupported_reason(self, body: Json) -> str:
        return ""

    async def render(
        self, body: Json, messages: list[Json], request_context: RequestContext, *, ask: bool = True
    ) -> Rendered:
        sent = orjson.dumps({**body, "messages": messages, "add_generation_prompt": ask})
        request = await self._upstream.post(
            "/chat/completions/render", sent, object_reader("token_ids"), request_context
        )
        return Rendered(request["token_ids"], request)

    async def generate(
        self, ids: list[int], rendered: Rendered, body: Json, request_context: RequestContext, *, texts: bool = False
    ) -> Generated:
        request = {key: value for key, value in rendered.request.items() if key not in _OF_RENDERING}
        params = {key: value for key, value in request["sampling_params"].items() if key != "max_tokens"}
        # Without a limit in the request, the rendered one was computed from the rendered messages. Dropping it lets the
        # engine compute it from `ids`.
        if (limit := body.get("max_completion_tokens") or body.get("max_tokens")) is not None:
            # vLLM 0.32 omits a limit of 16, its default, from a rendered request, and treats a missing one as no limit.
            params["max_tokens"] = request["sampling_params"].get("max_tokens", limit)
        elif (room := request["sampling_params"].get("max_tokens")) and (
            ids == rendered.ids or params.get("min_tokens")
        ):
            # Where vLLM checks min_tokens against the limit, it treats a missing limit as 16.
            params["max_tokens"] = max(room + len(rendered.ids) - len(ids), 1)
        request["sampling_params"] = params
        request["token_ids"] = ids
        sent = orjson.dumps(request)
        answer = await self._upstream.post("/../inference/v1/generate", sent, _read_generated, request_context)
        choice = answer["choices"][0]
        generated, entries = choice["token_ids"], choice["logprobs"]["content"]
        log_probs = [entry["logprob"] for entry in entries]
        if not texts:
            choice["logprobs"] = None
        completion = await self.read(answer, ids, body, request_context)
        # Only this usage includes the tokens cached by the engine; the derender endpoint does not report them.
        completion["usage"] = answer.get("usage") or completion.get("usage")
        finish(completion, body)
        sampling_record = sampling.of_engine(request["sampling_params"], body)
        return Generated(generated, log_probs, completion, sampling_record, choice.get("weight_versions"))

    async def read(self, answer: Json, ids: list[int], body: Json, request_context: RequestContext) -> Json:
        """Convert a response from /inference/v1/generate to a chat completion, using the engine's parsers."""
        choice = answer["choices"][0]
        turn_ids = _turn_ids(choice)
        if not turn_ids:
            message = {"role": "assistant", "content": ""}
            return {"id": answer.get("request_id"), "object": "chat.completion", "created": answer.get("created")} | {
                "model": answer.get("model"),
                "choices": [{"index": 0, "message": message, "finish_reason": choice.get("finish_reason")}],
            }
        parsing = {
            "model": body.get("model"),
            "generate_response": {**answer, "choices": [{**choice, "token_ids": turn_ids}]},
            "prompt_tokens": len(ids),
            "prompt_token_ids": ids[-SEED_IDS:],
            "chat_request": {**body, "messages": [{"role": "user", "content": ""}]},
        }
        read = object_reader("choices")
        completion: Json = await self._upstream.post(
            "/chat/completions/derender", orjson.dumps(parsing), read, request_context
        )
        if isinstance(stop := choice.get("stop_reason"), str):
            parsed, message = first_choice(completion)
            parsed["stop_reason"] = stop
            _cut_stop(message, stop, len(stop) * bool(body.get("include_stop_str_in_output")))
        return completion


def _turn_ids(choice: Json) -> list[int]:
    """Return the turn's token ids without the token that ended it. That token would become part of the text, which most
    tool parsers cannot handle.
    """
    ids: list[int] = choice["token_ids"]
    by_token = choice.get("finish_reason") == "stop" and not isinstance(choice.get("stop_reason"), str)
    return ids[:-1] if by_token else ids


def _cut_stop(message: Json, stop: str, kept: int) -> None:
    """Remove a stop string (except for its first `kept` characters) and everything after it from the text. The token
    ids are not changed.
    """
    for key in ("content", "reasoning", "reasoning_content"):
        if text := message.get(key):
            message[key] = text[: text.rindex(stop) + kept] if stop in text else text
            return


def _read_generated(body: bytes) -> Json:
    """Parse a generate response. Raises Failure malformed_answer if it contains no tokens or unexpected logprobs."""
    answer = json_object(body)
    entries = logprobs_of(answer, "content")
    if not all(isinstance(entry, dict) and "logprob" in entry for entry in entries):
        raise malformed("has malformed logprobs", answer)
    return answer


def _read_ids(body: bytes) -> Json:
    answer = json_object(body)
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0].get("token_ids"), list):
        raise malformed("has no token_ids", answer)
    return answer
