"""vLLM's logprobs compared with the same weights in transformers.

A regex (or any grammar) affects the logprobs of both modes: forbidden tokens are masked. Temperature, top_p, top_k,
penalties and logit_bias only affect processed logprobs. The logprobs of the unconstrained model for a constrained
response need a second request (prompt_logprobs).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.external.vllm.calls import CALL, asking
from tests.external.vllm.engine import Engine
from tests.external.vllm.reference import Reference

CLOSE = 1e-4
"""Tolerance for float32 sums in another order; the largest observed difference is 1e-5."""
GENERATE = "/inference/v1/generate"


class Sample:
    """One response of /inference/v1/generate to the prompt of `asking`."""

    def __init__(self, engine: Engine, temperature: float, regex: str | None = None, **sampling: Any) -> None:
        self.prompt: list[int] = engine.post("/v1/chat/completions/render", asking())["token_ids"]
        params = {"temperature": temperature, "max_tokens": 64, "logprobs": 0, "seed": 3, **sampling}
        if regex is not None:
            params["structured_outputs"] = {"regex": regex}
        (choice,) = engine.post(GENERATE, {"token_ids": self.prompt, "sampling_params": params})["choices"]
        self.output: list[int] = choice["token_ids"]
        content = choice["logprobs"]["content"]
        assert [part["token_id"] for part in content] == self.output
        self.logprobs = pytest.approx([part["logprob"] for part in content], abs=CLOSE)


def test_both_modes_give_the_models_logprobs_without_constraints_at_temperature_1(
    engine: Engine, raw_engine: Engine, reference: Reference, raw_reference: Reference
) -> None:
    for server, model in ((engine, reference), (raw_engine, raw_reference)):
        sample = Sample(server, 1.0)
        assert model.logprobs(sample.prompt, sample.output) == sample.logprobs


def test_the_chat_endpoint_gives_the_same_logprobs_as_generate(engine: Engine, reference: Reference) -> None:
    answer = engine.post("/v1/chat/completions", asking(temperature=1.0, logprobs=True, return_token_ids=True))
    (choice,) = answer["choices"]
    reported = [part["logprob"] for part in choice["logprobs"]["content"]]
    expected = reference.logprobs(answer["prompt_token_ids"], choice["token_ids"], CALL)
    assert expected == pytest.approx(reported, abs=CLOSE)


@pytest.mark.parametrize("regex", [None, CALL])
def test_processed_logprobs_include_the_mask_and_the_temperature(
    engine: Engine, reference: Reference, regex: str | None
) -> None:
    sample = Sample(engine, 0.8, regex)
    assert reference.logprobs(sample.prompt, sample.output, regex, 0.8) == sample.logprobs
    assert reference.logprobs(sample.prompt, sample.output, regex, 1.0) != sample.logprobs


@pytest.mark.parametrize("regex", [None, CALL])
def test_raw_logprobs_include_the_mask_but_not_the_temperature(
    raw_engine: Engine, raw_reference: Reference, regex: str | None
) -> None:
    sample = Sample(raw_engine, 0.8, regex)
    assert raw_reference.logprobs(sample.prompt, sample.output, regex, 1.0) == sample.logprobs
    assert raw_reference.logprobs(sample.prompt, sample.output, regex, 0.8) != sample.logprobs
    if regex is not None:
        assert raw_reference.logprobs(sample.prompt, sample.output) != sample.logprobs


def test_top_p_affects_processed_logprobs_but_not_raw_ones(
    engine: Engine, raw_engine: Engine, reference: Reference, raw_reference: Reference
) -> None:
    processed, raw = Sample(engine, 1.0, top_p=0.5), Sample(raw_engine, 1.0, top_p=0.5)
    assert reference.logprobs(processed.prompt, processed.output) != processed.logprobs
    assert raw_reference.logprobs(raw.prompt, raw.output) == raw.logprobs


def test_greedy_logprobs_include_the_mask_at_temperature_1(engine: Engine, reference: Reference) -> None:
    sample = Sample(engine, 0.0, CALL)
    assert reference.logprobs(sample.prompt, sample.output, CALL, 1.0) == sample.logprobs


def test_prompt_logprobs_are_those_of_the_unconstrained_model_in_both_modes(
    engine: Engine, raw_engine: Engine, reference: Reference, raw_reference: Reference
) -> None:
    for server, model in ((engine, reference), (raw_engine, raw_reference)):
        sample = Sample(server, 0.8, CALL)
        ids = sample.prompt + sample.output
        params = {"max_tokens": 1, "temperature": 0.8, "prompt_logprobs": 0}
        scores = server.post(GENERATE, {"token_ids": ids, "sampling_params": params})["prompt_logprobs"]
        scored = [score[str(token)]["logprob"] for score, token in zip(scores, ids, strict=True) if score is not None]
        expected = model.logprobs(sample.prompt, sample.output)
        assert expected == pytest.approx(scored[-len(sample.output) :], abs=CLOSE)
