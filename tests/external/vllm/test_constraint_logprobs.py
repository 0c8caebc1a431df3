"""Every constraint is recorded, and with the recorded constraints transformers gives the same logprobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from rollyard.services.responses.policy_logprobs import temperature_of, why_not_policy_logprobs
from rollyard.services.types import Json
from tests.external.vllm.constrained import ENDS, from_record
from tests.external.vllm.engine import Engine
from tests.external.vllm.reference import Reference
from tests.external.vllm.test_rollouts import run_config, turns_of
from tests.support.stacks import EXAMPLES, collect, colocated, read_rows
from tests.support.weight_engine import trainer_server

CLOSE = 1e-4
"""Tolerance for float32 sums in another order; the largest observed difference is 1e-5."""
CALL_MARK, END = 1018, ENDS[0]
WHOLE_CALLS: Json = {
    "logit_bias": {
        str(CALL_MARK): 20.0,
        "1": 7.0,
        "60": 7.0,
        "92": 7.0,
    },  # marks a call, and ends JSON
    "stop": ["</tool_call>"],
    "include_stop_str_in_output": True,
    "max_tokens": 200,
}
"""With this, random weights write one complete call per turn with random content."""
REQUEST: Json = orjson.loads(EXAMPLES.read_bytes().split(b"\n")[0])["responses_create_params"]
LOOSE = {**REQUEST, "tools": [{**REQUEST["tools"][0], "strict": False}]}
FREE = {"input": REQUEST["input"]}
SCHEMA = {"type": "object", "properties": {"d": {"enum": ["up", "down"]}}, "required": ["d"]}
FORMAT = {"type": "json_schema", "name": "move", "schema": {**SCHEMA, "additionalProperties": False}}
BY_GRAMMAR: dict[str, tuple[Json, list[str]]] = {
    "the strict tool of the example rows": (
        {**REQUEST, "logit_bias": {str(CALL_MARK): 8.0}},
        ["strict_tools", "logit_bias"],
    ),
    "a required call": ({**LOOSE, "tool_choice": "required"}, ["tool_choice"]),
    "a named call": ({**LOOSE, "tool_choice": {"type": "function", "name": "step"}}, ["tool_choice"]),
    "a schema": ({**FREE, "text": {"format": FORMAT}}, ["response_format"]),
    "any JSON": ({**FREE, "text": {"format": {"type": "json_object"}}}, ["response_format"]),
    "a regex": ({**LOOSE, "structured_outputs": {"regex": "(ab|cd){4,9}"}}, ["structured_outputs"]),
    "a stop token in a grammar": (
        {**LOOSE, "tool_choice": "required", "stop_token_ids": [12, 220]},
        ["tool_choice"],
    ),
}
OTHERS: dict[str, tuple[Json, list[str]]] = {
    "allowed tokens": ({**FREE, "allowed_token_ids": [*range(100, 400), END]}, ["allowed_token_ids"]),
    "a minimum number of tokens": (
        {**FREE, "min_tokens": 20, "logit_bias": {str(END): 6.0}},
        ["logit_bias", "min_tokens"],
    ),
    "bad words": ({**FREE, "bad_words": ["the", "wall", "a"]}, ["bad_words"]),
    "top_p": ({**FREE, "top_p": 0.5}, ["top_p"]),
    "top_k": ({**FREE, "top_k": 5}, ["top_k"]),
    "min_p": ({**FREE, "min_p": 0.2}, ["min_p"]),
    "a repetition penalty": ({**FREE, "repetition_penalty": 1.3}, ["repetition_penalty"]),
    "a presence penalty": ({**FREE, "presence_penalty": 0.7}, ["presence_penalty"]),
    "a frequency penalty": ({**FREE, "frequency_penalty": 0.7}, ["frequency_penalty"]),
}
NONE: dict[str, tuple[Json, list[str]]] = {
    "nothing": (LOOSE, []),
    "only end conditions": ({**FREE, "stop": ["wall"], "stop_token_ids": [220], "ignore_eos": True}, []),
}


async def turn(engine: Engine, params: Json, **settings: Any) -> Json:
    """The last item of a model response."""
    options = {"trainer_endpoints": False, "return_token_id_information": True, **settings}
    async with trainer_server(base_url=[f"{engine.url}/v1"], **options) as policy_server:
        status, answer = await policy_server.post(
            "/v1/responses", {"temperature": 0.8, "seed": 4, "max_output_tokens": 80, **params}
        )
    assert status == 200, answer
    item: Json = answer["output"][-1]
    return item


@pytest.mark.parametrize("mode", ["processed_logprobs", "raw_logprobs"])
@pytest.mark.parametrize("case", [*BY_GRAMMAR, *OTHERS, *NONE])
async def test_with_the_recorded_constraints_the_logprobs_equal_a_forward_pass(
    case: str, mode: str, request: pytest.FixtureRequest, reference: Reference
) -> None:
    engine = request.getfixturevalue("engine" if mode == "processed_logprobs" else "raw_engine")
    params, names = {**BY_GRAMMAR, **OTHERS, **NONE}[case]
    item = await turn(engine, params)
    sampling, recorded = item["token_trace"]["sampling"], item["generation_log_probs"]
    assert (sampling.get("constrained", []), sampling["logprobs_mode"]) == (names, mode)
    assert from_record(reference, item) == pytest.approx(recorded, abs=CLOSE)
    unconstrained = reference.logprobs(
        item["prompt_token_ids"], item["generation_token_ids"], temperature=temperature_of(sampling)
    )
    is_unconstrained = unconstrained == pytest.approx(recorded, abs=CLOSE)
    assert is_unconstrained is not (case in BY_GRAMMAR or (case in OTHERS and mode == "processed_logprobs"))
    assert (why_not_policy_logprobs(item) == "") is is_unconstrained


async def test_a_turn_through_the_chat_endpoint_names_the_same_constraints(engine: Engine) -> None:
    for params, names in (*BY_GRAMMAR.values(), *OTHERS.values(), *NONE.values()):
        item = await turn(engine, params, token_in="off")
        sampling = item["token_trace"]["sampling"]
        assert (sorted(sampling.get("constrained", [])), item["token_trace"]["way"]) == (sorted(names), "chat")
        assert sampling["version_of"] == "turn"


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
        assert why_not_policy_logprobs(item).startswith("strict_tools, logit_bias changed")
        assert from_record(reference, item) == pytest.approx(item["generation_log_probs"], abs=CLOSE)
    assert all(row["token_trail"]["constrained"] == ["logit_bias", "strict_tools"] for row in rows)


async def _collect(engine: Engine, folder: Path, settings: Json) -> list[Json]:
    async with colocated(run_config(engine, folder, **settings), folder) as stack:
        state, _ = await collect(stack, folder / "rollouts.jsonl", rows=EXAMPLES, repeats=2)
    assert state == "complete"
    return read_rows(folder / "rollouts.jsonl")
