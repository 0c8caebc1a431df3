"""A first turn that is rendered and sent as ids equals the turn of the chat endpoint."""

from __future__ import annotations

import pytest

from rollyard.records.types import Json
from tests.external.vllm.first_turns import CLOSE, KINDS, UNCONSTRAINED, FirstTurns

VARYING = ("id", "call_id", "created_at", "token_trace", "system_fingerprint")
"""Fields that differ between any two calls."""


def comparable(response: Json) -> Json:
    output = [{key: value for key, value in item.items() if key not in VARYING} for item in response["output"]]
    for item in output:
        item.pop("generation_log_probs", None)
        if "content" in item:
            item["content"] = [
                {**part, "logprobs": [entry["token"] for entry in part.get("logprobs", ())]} for part in item["content"]
            ]
    return {**{key: value for key, value in response.items() if key not in VARYING}, "output": output}


@pytest.mark.parametrize("kind", [*KINDS, *UNCONSTRAINED])
async def test_a_first_turn_as_ids_equals_the_turn_of_the_chat_endpoint(first_turns: FirstTurns, kind: str) -> None:
    by_chat, by_ids = [await first_turns.of(kind, token_in) for token_in in ("off", "generate")]
    its_last, last = by_chat["output"][-1], by_ids["output"][-1]
    assert (its_last["token_trace"]["way"], last["token_trace"]["way"]) == ("chat", "generate")
    assert comparable(by_ids) == comparable(by_chat)
    assert last["generation_log_probs"] == pytest.approx(its_last["generation_log_probs"], abs=CLOSE)
