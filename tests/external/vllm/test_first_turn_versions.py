"""A weight update in the middle of a first turn: the version of each token is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.types import Json
from tests.external.vllm.calls import asking
from tests.external.vllm.engine import Engine, in_flight
from tests.external.vllm.first_turns import CLOSE
from tests.external.vllm.reference import Reference
from tests.external.vllm.test_weights import LONG, unchanged
from tests.support.weight_engine import TrainerClient, trainer_server

__all__ = ["unchanged"]  # a fixture that restores the weights after each test


async def test_the_version_of_each_token_of_a_first_turn_is_recorded(
    engine: Engine, other_model: Path, reference: Reference, other_reference: Reference
) -> None:
    async with trainer_server(base_url=[f"{engine.url}/v1"], return_token_id_information=True) as policy_server:
        request: Json = {**asking(temperature=1.0), "structured_outputs": None, "seed": None}
        message = await _updated_while(
            engine, policy_server, {**request, "max_tokens": LONG, "ignore_eos": True}, other_model
        )
    sampling, ids = message["token_trace"]["sampling"], message["generation_token_ids"]
    old, new = sampling["weight_versions"]
    assert (old["version"], new["version"], sampling["version_of"]) == ("0", "step-1", "token")
    switch = old["end"]
    assert 0 < switch < LONG
    logprobs = message["generation_log_probs"]
    of_old = reference.logprobs(message["prompt_token_ids"], ids)
    of_new = other_reference.logprobs(message["prompt_token_ids"], ids)
    assert logprobs[:switch] == pytest.approx(of_old[:switch], abs=CLOSE)
    assert logprobs[switch:] == pytest.approx(of_new[switch:], abs=CLOSE)


async def _updated_while(engine: Engine, policy_server: TrainerClient, request: Json, folder: Path) -> Json:
    """The message of a call during which the weights are updated."""
    calling = await in_flight(engine, policy_server.post("/v1/chat/completions", request))
    assert (await policy_server.update(str(folder), version="step-1"))[0] == 200
    status, answer = await calling
    assert status == 200, answer
    message: Json = answer["choices"][0]["message"]
    return message
