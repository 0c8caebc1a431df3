"""New weights under a real engine, through the model server: what samples afterwards is exactly the new model."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from safetensors.torch import load_file, save_file

from rollyard.services.types import Json
from tests.external.vllm.calls import CALL, asking
from tests.external.vllm.engine import Engine
from tests.external.vllm.reference import Reference
from tests.external.vllm.test_rollouts import run_config, turns_of
from tests.support.stacks import collect, colocated, read_rows
from tests.support.weight_engine import Door, door

CLOSE = 1e-4
"""Float32 sums in another order: 1e-5 is the largest difference seen."""
GENERATE = "/inference/v1/generate"
PROMPT = [5, 6, 7, 8, 9, 10] * 60
"""Several blocks of the engine's cache."""


@pytest.fixture(autouse=True)
def unchanged(engine: Engine, tiny_model: Path) -> Iterator[None]:
    """After a test, whatever it did, the engine has its own weights again, under vLLM's own name for them."""
    yield
    load = {"method": "reload_weights", "kwargs": {"weights_path": str(tiny_model)}}
    for path, body in (
        ("/pause?mode=keep", None),
        ("/collective_rpc", load),
        ("/reset_prefix_cache?reset_running_requests=true", None),
        ("/update_weight_version", {"new_version": "default"}),
        ("/resume", None),
    ):
        answer = engine.client.post(path, json=body)
        assert answer.status_code == 200, answer.text


@contextlib.asynccontextmanager
async def policy(engine: Engine, **settings: Any) -> AsyncIterator[Door]:
    """A model server with the trainer's endpoints in front of the engine."""
    async with door(base_url=[f"{engine.url}/v1"], **{"weights_check": "values", **settings}) as made:
        yield made


async def sampled(made: Door, **params: Any) -> tuple[list[int], list[float], Any]:
    """Token ids, logprobs and the engine's own versions of an answer at temperature 1."""
    sampling = {"temperature": 1.0, "max_tokens": 16, "logprobs": 0, "ignore_eos": True, **params}
    status, said = await made.post(GENERATE, {"token_ids": PROMPT, "sampling_params": sampling})
    assert status == 200, said
    (choice,) = said["choices"]
    return choice["token_ids"], [part["logprob"] for part in choice["logprobs"]["content"]], choice["weight_versions"]


async def test_after_every_update_the_logprobs_are_exactly_the_new_models(
    engine: Engine, tiny_model: Path, other_model: Path
) -> None:
    async with policy(engine) as made:
        for number, folder in enumerate((other_model, tiny_model, other_model), 1):
            status, said = await made.update(str(folder))
            assert (status, said["version"], said["engines"], said["warnings"]) == (200, str(number), 1, [])
            output, logprobs, versions = await sampled(made)
            assert Reference(folder).logprobs(PROMPT, output) == pytest.approx(logprobs, abs=CLOSE)
            assert versions == [{"version": str(number), "start": 0, "end": 16}]


async def test_a_turn_in_flight_survives_and_each_of_its_tokens_is_by_the_version_on_record(
    engine: Engine, tiny_model: Path, other_model: Path
) -> None:
    async with policy(engine, return_token_id_information=True, logprobs_mode="processed_logprobs") as made:
        request = asking(temperature=1.0, seed=None)
        first = (await made.post("/v1/chat/completions", request))[1]["choices"][0]["message"]
        (call,) = first["tool_calls"]
        said = {"role": "tool", "tool_call_id": call["id"], "content": "You moved."}
        # Its regex would be part of the logprobs; free text is not.
        longer: Json = {**request, "messages": [*request["messages"], first, said], "structured_outputs": None}
        longer.update(max_tokens=1500, ignore_eos=True)
        before = engine.gauge("vllm:generation_tokens_total")
        calling = asyncio.create_task(made.post("/v1/chat/completions", longer))
        while engine.gauge("vllm:generation_tokens_total") - before < 50:
            await asyncio.sleep(0.02)
        assert (await made.update(str(other_model), version="step-12"))[0] == 200
        status, answer = await calling
    assert status == 200, answer
    message = answer["choices"][0]["message"]
    trace, sampling = message["token_trace"], message["token_trace"]["sampling"]
    assert trace["way"] == "generate"
    assert (sampling["policy_version"], sampling["policy_version_end"]) == ("0", "step-12")
    old, new = sampling["weight_versions"]
    assert (old["version"], old["start"], new["version"], new["end"]) == ("0", 0, "step-12", 1500)
    ids, logprobs = message["generation_token_ids"], message["generation_log_probs"]
    switch = old["end"]
    assert 0 < switch < 1500
    of_old = Reference(tiny_model).logprobs(message["prompt_token_ids"], ids)
    of_new = Reference(other_model).logprobs(message["prompt_token_ids"], ids)
    assert logprobs[:switch] == pytest.approx(of_old[:switch], abs=CLOSE)
    # The keys and values of the tokens before are the new model's, too: it computed them again.
    assert logprobs[switch:] == pytest.approx(of_new[switch:], abs=CLOSE)


async def test_rollouts_go_on_through_updates_and_each_token_is_by_the_version_on_record(
    engine: Engine, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    folders = {"0": tiny_model}
    # Without seeds: on a CPU vLLM 0.32 dies of a seeded request that is computed again in several pieces.
    chosen = run_config(engine, tmp_path, trainer_endpoints=True, sampling_overrides={"seed": None})
    async with colocated(chosen, tmp_path, token="the run's token") as stack:
        collecting = asyncio.create_task(collect(stack, tmp_path / "rollouts.jsonl"))
        while not collecting.done():
            version = f"step-{len(folders)}"
            folders[version] = (tiny_model, other_model)[len(folders) % 2]
            body = {"path": str(folders[version]), "version": version}
            await stack.client.post("policy_model", "/weights/update", orjson.dumps(body), 120.0)
            await asyncio.sleep(0.5)
        state, progress = await collecting
    assert (state, progress.failed_attempts, len(folders) > 3) == ("complete", 0, True)
    references = {folder: Reference(folder) for folder in (tiny_model, other_model)}
    seen: set[str] = set()
    for turn in (item for row in read_rows(tmp_path / "rollouts.jsonl") for item in turns_of(row)):
        sampling, ids = turn["token_trace"]["sampling"], turn["generation_token_ids"]
        spans = [{"version": sampling["policy_version"], "start": 0, "end": len(ids)}]
        if "policy_version_end" in sampling:
            spans = sampling["weight_versions"]  # of first turns, too
        for span in spans:
            seen.add(span["version"])
            reference, within = references[folders[span["version"]]], slice(span["start"], span["end"])
            expected = reference.logprobs(turn["prompt_token_ids"], ids, CALL, 0.8)
            assert turn["generation_log_probs"][within] == pytest.approx(expected[within], abs=CLOSE)
    assert len(seen) > 3


async def test_nothing_of_the_old_weights_is_left_in_the_prefix_cache(engine: Engine, other_model: Path) -> None:
    async with policy(engine) as made:
        await sampled(made)
        hits = engine.gauge("vllm:prefix_cache_hits_total")
        await sampled(made)
        assert engine.gauge("vllm:prefix_cache_hits_total") > hits
        await made.update(str(other_model))
        hits = engine.gauge("vllm:prefix_cache_hits_total")
        await sampled(made)
        assert engine.gauge("vllm:prefix_cache_hits_total") == hits


async def test_a_load_that_fails_ends_what_was_in_flight_and_not_the_engine(engine: Engine) -> None:
    async with policy(engine, max_attempts=1, weights_check="off") as made:
        before = engine.gauge("vllm:generation_tokens_total")
        request = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 3000, "ignore_eos": True}}

        async def call_until_refused() -> int:
            # One after the other: on a busy machine a single one may end before the update begins.
            while (status := (await made.post(GENERATE, request))[0]) == 200:
                pass
            return status

        calling = asyncio.create_task(call_until_refused())
        while engine.gauge("vllm:generation_tokens_total") - before < 50:
            await asyncio.sleep(0.02)
        status, said = await made.update("/nowhere/to/be/seen")
        assert (status, f"{engine.url}/v1 must be restarted" in said["detail"]) == (502, True)
        assert await calling == 503
        assert (await made.asked())[0] == 503
        assert engine.client.get("/health").status_code == 200


REFUSED = ("not there", "no head", "NaN", "cut short", "another shape", "no weights")


def spoiled(good: Path, folder: Path, how: str) -> Path:
    """A copy of a checkpoint that a real vLLM takes for good, or dies of."""
    if how == "not there":
        return folder / "nowhere"
    shutil.copytree(good, folder / how)
    file = folder / how / "model.safetensors"
    tensors = load_file(file)
    if how == "no head":
        del tensors["lm_head.weight"]
    elif how == "NaN":
        tensors["model.norm.weight"][-1] = float("nan")
    elif how == "another shape":
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].contiguous()
    save_file(tensors, file, {"format": "pt"})
    if how == "cut short":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "no weights":
        file.unlink()
    return folder / how


async def test_after_an_update_that_was_refused_the_engine_answers_bit_for_bit_as_before(
    engine: Engine, other_model: Path, tmp_path: Path
) -> None:
    async with policy(engine) as made:
        before = await sampled(made, temperature=0.0)
        for how in REFUSED:
            status, said = await made.update(str(spoiled(other_model, tmp_path, how)))
            assert (status, "\n" in said["detail"], await made.version()) == (400, False, "0"), said
            assert await sampled(made, temperature=0.0) == before, how


async def test_a_pause_whose_trainer_died_ends_and_the_request_in_flight_goes_on(engine: Engine) -> None:
    async with policy(engine) as made:
        assert (await made.post("/pause?mode=keep&lease_s=0.5"))[0] == 200
        assert (await sampled(made))[2] == [{"version": "0", "start": 0, "end": 16}]
        assert (await made.get("/weights"))[1]["lease_expired"]["lease_s"] == 0.5


async def test_a_request_with_a_seed_is_refused_and_the_engine_lives(engine: Engine) -> None:
    async with policy(engine) as made:
        status, said = await made.post("/v1/chat/completions", asking(seed=3))
        assert (status, "found seed 3" in said["detail"]) == (400, True)
        assert (await made.post("/v1/chat/completions", asking(seed=None)))[0] == 200


async def test_a_server_that_is_started_again_knows_what_its_engine_holds(engine: Engine, other_model: Path) -> None:
    async with policy(engine) as made:
        await made.update(str(other_model), version="step-12")
    async with policy(engine) as made:
        assert await made.version() == "step-12"


async def test_tokens_pass_in_and_out_as_the_engine_gives_them(engine: Engine) -> None:
    async with policy(engine) as made:
        for path, body in (
            ("/tokenize", {"prompt": "Solve this", "return_token_strs": True}),
            ("/detokenize", {"tokens": [5, 6, 7]}),
            ("/v1/chat/completions/render", asking()),
        ):
            status, said = await made.post(path, {**body, "model": "another"})
            assert status == 200, said
            direct = engine.post(path, {**body, "model": "tiny"})
            assert said.keys() == direct.keys()
            assert {key: said[key] for key in ("tokens", "prompt", "token_ids") if key in said} == {
                key: direct[key] for key in ("tokens", "prompt", "token_ids") if key in direct
            }
        prompt = {"prompt": [5, 6, 7], "max_tokens": 4, "return_token_ids": True}
        status, said = await made.post("/v1/completions", prompt)
        assert (status, said["choices"][0]["prompt_token_ids"]) == (200, [5, 6, 7])
        answer, _ = await made.send("POST", "/v1/completions", {**prompt, "stream": True})
        assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_the_engines_control_calls_pass(engine: Engine) -> None:
    async with policy(engine) as made:
        assert await made.post("/pause?mode=keep") == (200, {"status": "paused"})
        assert await made.get("/is_paused") == (200, {"is_paused": True})
        assert await made.post("/resume") == (200, {"status": "resumed"})
        assert await made.get("/get_world_size?include_dp=false") == (200, {"world_size": 1})
        assert (await made.post("/update_weight_version", {"new_version": "sft"}))[0] == 200
        assert await made.get("/weight_info") == (200, {"weight_version": "sft"})
        status, said = await made.post("/sleep?level=9")
        assert (status, "less than or equal to 2" in str(said)) == (400, True)
