"""Lists the vLLM control endpoints that a model server forwards, and combines the engines' responses."""

from __future__ import annotations

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Problem
from rollyard.responses_api_models.chat_engine.weights.engine_group import EngineReply
from rollyard.services.http.response_failures import PROBLEM_TYPE

POSTS = {
    "/pause": "keeps (mode=keep), drains or aborts requests in flight; model calls wait until /resume, or until "
    "lease_s seconds pass without a control call",
    "/resume": "ends a pause",
    "/reset_prefix_cache": "discards the KV cache of old weights",
    "/collective_rpc": "calls a method of the engine's workers, e.g. of a worker extension that receives weights",
    "/init_weight_transfer_engine": "connects the trainer and the engines, e.g. in an NCCL group",
    "/shutdown_weight_transfer_engine": "disconnects them",
    "/start_weight_update": "starts an update, which invalidates the weights; only while paused",
    "/update_weights": "transfers a part of the new weights",
    "/finish_weight_update": "activates the new weights as a new version, `weight_version` or the next number",
    "/update_weight_version": "names the current weights",
    "/sleep": "frees GPU memory for a trainer on the same GPUs; model calls wait until /wake_up",
    "/wake_up": "reclaims the memory",
}
"""Path -> purpose. vLLM's other endpoints are not forwarded."""
GETS = {
    "/is_paused": "state of /pause",
    "/is_sleeping": "state of /sleep",
    "/get_world_size": "number of workers that join an NCCL group",
    "/weight_info": "the engine's own version of its weights",
}


def answer(replies: list[EngineReply]) -> tuple[int, bytes, str]:
    """Return the status, body and content type: of a single engine's response, or of a combined response.

    Raises Failure if an engine failed.
    """
    if len(replies) == 1 and replies[0].content_type == PROBLEM_TYPE:
        raise Failure.of(Problem.model_validate_json(replies[0].body))
    if len(replies) == 1:
        return replies[0].status, replies[0].body, replies[0].content_type
    shown = [reply.shown() for reply in replies]
    if not all_succeeded(replies):
        wrong = [reply for reply in replies if not reply.ok]
        first = wrong[0].failure("").problem
        detail = f"the call failed on {len(wrong)} of {len(replies)} engines; {first.detail}"
        problem = Failure(FailureKind.UPSTREAM_ERROR, detail, upstream_status=wrong[0].status).problem
        raise Failure.of(problem.model_copy(update={"engines": shown}))
    lost = (
        {"lost": [reply.url for reply in replies if not reply.answered]}
        if not all(reply.ok for reply in replies)
        else {}
    )
    return 200, orjson.dumps({"engines": shown, **lost}), "application/json"


def all_succeeded(replies: list[EngineReply]) -> bool:
    """Return True if at least one engine responded, and the call succeeded on every engine that did."""
    answered = [reply for reply in replies if reply.answered]
    return bool(answered) and all(reply.ok for reply in answered)
