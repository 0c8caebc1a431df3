"""A first turn that is rendered and sent as ids equals the turn of the chat endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.services.types import Json
from tests.external.vllm.engine import Engine
from tests.external.vllm.test_constraint_logprobs import BY_GRAMMAR, CLOSE, FREE, LOOSE, NONE, OTHERS
from tests.support.weight_engine import trainer_server

KINDS: dict[str, Json] = {name: params for name, (params, _) in {**BY_GRAMMAR, **OTHERS, **NONE}.items()} | {
    "a stop string": {**FREE, "stop": ["e"]},
    "a stop string that stays": {**FREE, "stop": ["e"], "include_stop_str_in_output": True},
    "a template's argument": {**FREE, "chat_template_kwargs": {"enable_thinking": False}},
    "log-probabilities in words": {**FREE, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "a limit that is vLLM's default": {**FREE, "max_output_tokens": 16, "ignore_eos": True},
    "no tool": {**LOOSE, "tool_choice": "none"},
    "no limit": {**FREE, "max_output_tokens": None, "logit_bias": {"1017": 5.0}},
}


async def first_turn(engine: Engine, params: Json, token_in: Any) -> tuple[Json, Json]:
    """The Response of a first turn without fields that differ between any two calls, and its last item."""
    options = {"trainer_endpoints": False, "return_token_id_information": True, "token_in": token_in}
    async with trainer_server(base_url=[f"{engine.url}/v1"], **options) as policy_server:
        body = {"temperature": 0.8, "seed": 4, "max_output_tokens": 60, **params}
        status, response = await policy_server.post("/v1/responses", body)
    assert status == 200, response
    last = response["output"][-1]
    varying = ("id", "call_id", "created_at", "token_trace", "system_fingerprint")
    output = [{key: value for key, value in item.items() if key not in varying} for item in response["output"]]
    for item in output:
        item.pop("generation_log_probs", None)
        for part in item.get("content", ()):
            part["logprobs"] = [entry["token"] for entry in part.get("logprobs", ())]
    return {**{key: value for key, value in response.items() if key not in varying}, "output": output}, last


@pytest.mark.parametrize("kind", KINDS)
async def test_a_first_turn_as_ids_equals_the_turn_of_the_chat_endpoint(engine: Engine, kind: str) -> None:
    by_chat, its_last = await first_turn(engine, KINDS[kind], "off")
    by_ids, last = await first_turn(engine, KINDS[kind], "generate")
    assert (its_last["token_trace"]["way"], last["token_trace"]["way"]) == ("chat", "generate")
    assert by_ids == by_chat
    assert last["generation_log_probs"] == pytest.approx(its_last["generation_log_probs"], abs=CLOSE)
