"""Control calls: those of vLLM's that a model server passes on, and one answer made of several engines'."""

from __future__ import annotations

import orjson

from rollyard.responses_api_models.chat_engine.weights.engine_group import EngineReply
from rollyard.services.errors import Failure, FailureKind
from rollyard.services.http.client import PROBLEM_TYPE
from rollyard.services.types import Problem

POSTS = {
    "/pause": "freezes (mode=keep), drains or aborts what is in flight; model calls wait here until /resume, or until "
    "lease_s seconds pass without a control call",
    "/resume": "ends a pause",
    "/reset_prefix_cache": "forgets keys and values of old weights",
    "/collective_rpc": "a method of the engine's workers, e.g. of a worker extension that takes weights",
    "/init_weight_transfer_engine": "joins trainer and engines, e.g. in a NCCL group",
    "/shutdown_weight_transfer_engine": "parts them",
    "/start_weight_update": "takes the weights away; only while paused",
    "/update_weights": "brings a part of the new ones",
    "/finish_weight_update": "puts them in place: another version, `weight_version` or the next number",
    "/update_weight_version": "names the weights that are there",
    "/sleep": "gives GPU memory to a trainer on the same GPUs; model calls wait here until /wake_up",
    "/wake_up": "takes it back",
}
"""Path -> what it is needed for. Others that vLLM has are not passed on."""
GETS = {
    "/is_paused": "state of /pause",
    "/is_sleeping": "state of /sleep",
    "/get_world_size": "how many workers join a NCCL group",
    "/weight_info": "the engine's own name for its weights",
}


def answer(said: list[EngineReply]) -> tuple[int, bytes, str]:
    """Status, body and content type: one engine's answer as it is, or those of several. Raises Failure."""
    if len(said) == 1 and said[0].content_type == PROBLEM_TYPE:
        raise Failure.of(Problem.model_validate_json(said[0].body))
    if len(said) == 1:
        return said[0].status, said[0].body, said[0].content_type
    shown = [one.shown() for one in said]
    if not all_succeeded(said):
        wrong = [one for one in said if not one.ok]
        first = wrong[0].failure("").problem
        told = f"{len(wrong)} of {len(said)} engines did not do it; {first.detail}"
        problem = Failure(FailureKind.UPSTREAM_ERROR, told, upstream_status=wrong[0].status).problem
        raise Failure.of(problem.model_copy(update={"engines": shown}))
    lost = {"lost": [one.url for one in said if not one.answered]} if not all(one.ok for one in said) else {}
    return 200, orjson.dumps({"engines": shown, **lost}), "application/json"


def all_succeeded(said: list[EngineReply]) -> bool:
    """True when every engine that is still there did it; one that gave no answer is lost where another gave one."""
    answered = [one for one in said if one.answered]
    return bool(answered) and all(one.ok for one in answered)
