"""Every constraint is recorded, and with the recorded constraints transformers gives the same logprobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollyard.records.types import Json
from rollyard.services.responses.policy_logprobs import temperature_of, why_not_policy_logprobs
from tests.external.vllm.constrained import from_record
from tests.external.vllm.engine import Engine
from tests.external.vllm.first_turns import (
    CALL_MARK,
    CLOSE,
    END,
    FREE,
    KINDS,
    NOTHING,
    REQUEST,
    SCHEMA,
    STRICT,
    FirstTurns,
    Kind,
    response_to,
)
from tests.external.vllm.reference import Reference
from tests.external.vllm.test_rollouts import run_config, turns_of
from tests.support.stacks import EXAMPLES, collect, colocated, read_rows
from tests.support.weight_engine import trainer_server

WHOLE_CALLS: Json = {
    # marks a call, and ends JSON
    "logit_bias": {str(CALL_MARK): 20.0, "1": 7.0, "60": 7.0, "92": 7.0},
    "stop": ["</tool_call>"],
    "include_stop_str_in_output": True,
    "max_tokens": 200,
}
"""With this, random weights write one complete call per turn with random content."""
ALL_AT_ONCE = Kind(
    {
        **FREE,
        "allowed_token_ids": [*range(100, 400), END],
        "min_tokens": 20,
        "logit_bias": {str(END): 6.0},
        "bad_words": ["the", "wall", "a"],
        "top_p": 0.9,
        "top_k": 50,
        "min_p": 0.02,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.7,
        "frequency_penalty": 0.7,
    },
    (
        *("allowed_token_ids", "min_tokens", "logit_bias", "bad_words", "top_p", "top_k", "min_p"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty"),
    ),
)
"""Everything but a grammar. Raw logprobs depend on nothing of it."""
RAW = {**{name: KINDS[name] for name in (STRICT, SCHEMA, NOTHING)}, "all but a grammar": ALL_AT_ONCE}


def equal_a_forward_pass(kind: Kind, item: Json, reference: Reference, mode: str) -> None:
    sampling, recorded = item["token_trace"]["sampling"], item["generation_log_probs"]
    assert (sorted(sampling.get("constrained", [])), sampling["logprobs_mode"]) == (sorted(kind.names), mode)
    assert from_record(reference, item) == pytest.approx(recorded, abs=CLOSE)
    unconstrained = reference.logprobs(
        item["prompt_token_ids"], item["generation_token_ids"], temperature=temperature_of(sampling)
    )
    is_unconstrained = unconstrained == pytest.approx(recorded, abs=CLOSE)
    changed = kind.by_grammar or (bool(kind.names) and mode == "processed_logprobs")
    assert is_unconstrained is not changed
    assert (why_not_policy_logprobs(item) == "") is is_unconstrained


@pytest.mark.parametrize("name", KINDS)
async def test_with_the_recorded_constraints_processed_logprobs_equal_a_forward_pass(
    name: str, first_turns: FirstTurns, reference: Reference
) -> None:
    item = (await first_turns.of(name, "generate"))["output"][-1]
    equal_a_forward_pass(KINDS[name], item, reference, "processed_logprobs")


@pytest.mark.parametrize("name", RAW)
async def test_with_the_recorded_constraints_raw_logprobs_equal_a_forward_pass(
    name: str, raw_engine: Engine, raw_reference: Reference
) -> None:
    item = (await response_to(raw_engine, RAW[name].params))["output"][-1]
    equal_a_forward_pass(RAW[name], item, raw_reference, "raw_logprobs")


@pytest.mark.parametrize("name", KINDS)
async def test_a_turn_through_the_chat_endpoint_names_the_same_constraints(name: str, first_turns: FirstTurns) -> None:
    trace = (await first_turns.of(name, "off"))["output"][-1]["token_trace"]
    assert sorted(trace["sampling"].get("constrained", [])) == sorted(KINDS[name].names)
    assert (trace["way"], trace["sampling"]["version_of"]) == ("chat", "turn")


async def test_strict_tools_are_not_enforced_by_the_completions_endpoint(engine: Engine, reference: Reference) -> None:
    async with trainer_server(
        base_url=[f"{engine.url}/v1"],
        trainer_endpoints=False,
        return_token_id_information=True,
        token_in="completions",
        text_tool_parser="hermes",
    ) as policy_server:
        first = (await policy_server.post("/v1/responses", {**REQUEST, "max_output_tokens": 20}))[1]["output"]
        second_request = {
            **REQUEST,
            "input": [*REQUEST["input"], *first, {"role": "user", "content": "On."}],
            "max_output_tokens": 40,
        }
        status, answer = await policy_server.post("/v1/responses", second_request)
    assert status == 200, answer
    item = answer["output"][-1]
    sampling = item["token_trace"]["sampling"]
    assert (item["token_trace"]["way"], sampling["not_enforced"]) == ("completions", ["strict_tools"])
    assert "constrained" not in sampling
    assert from_record(reference, item) == pytest.approx(item["generation_log_probs"], abs=CLOSE)


def test_rollouts_with_strict_tools_equal_a_forward_pass_with_the_recorded_constraints(
    engine: Engine, reference: Reference, tmp_path: Path
) -> None:
    rows = asyncio.run(_collect(engine, tmp_path, {"strict_tools": None, "extra_body": WHOLE_CALLS}))
    turns = [item for row in rows for item in turns_of(row)]
    assert len(turns) > len(rows)
    for item in turns:
        assert item["token_trace"]["sampling"]["constrained"] == ["strict_tools", "logit_bias"]
        assert why_not_policy_logprobs(item).startswith("strict_tools, logit_bias")
        assert from_record(reference, item) == pytest.approx(item["generation_log_probs"], abs=CLOSE)
    assert all(row["token_trail"]["constrained"] == ["logit_bias", "strict_tools"] for row in rows)


async def _collect(engine: Engine, folder: Path, settings: Json) -> list[Json]:
    async with colocated(run_config(engine, folder, **settings), folder) as stack:
        state, _ = await collect(stack, folder / "rollouts.jsonl", rows=EXAMPLES, repeats=1)
    assert state == "complete"
    return read_rows(folder / "rollouts.jsonl")
